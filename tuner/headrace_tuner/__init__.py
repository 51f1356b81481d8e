"""The tuner: open-loop trials of hot knobs on a live engine, and a verdict that stands on fresh measurements."""
