"""The scheduler on a virtual clock, and how long its steps take."""
