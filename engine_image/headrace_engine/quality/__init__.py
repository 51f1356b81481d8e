"""What a model says under a config, through the scheduler and the runner that serve.

`headrace bench quality` asks for it in a process of its own (`python -m headrace_engine observe`), and compares.
"""
