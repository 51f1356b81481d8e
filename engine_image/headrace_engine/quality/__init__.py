"""`headrace bench quality`: does a config change what the model says?

Paired greedy outputs and the likelihood of forced text, through the scheduler and the runner that serve.
"""
