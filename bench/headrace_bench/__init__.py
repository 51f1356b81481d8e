"""The commands of `headrace bench` that run outside the engine."""
