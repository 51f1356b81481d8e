"""The tuner: open-loop trials of hot knobs on a live engine, and a verdict based on fresh measurements."""
