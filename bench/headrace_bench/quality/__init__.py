"""`headrace bench quality`: does a config change what the model says?

Paired greedy outputs and the likelihood of forced text. The engine measures them in a subprocess.
"""
