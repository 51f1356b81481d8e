"""The only statistics of the project: SLO set, windows, intervals, verdicts."""
