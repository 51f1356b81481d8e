"""Everything that `headrace bench` does outside the engine."""
