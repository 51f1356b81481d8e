"""What a model outputs under a config, run through the same scheduler and runner as in serving.

`headrace bench quality` runs this in a separate process (`python -m headrace_engine observe`) and compares the results.
"""
