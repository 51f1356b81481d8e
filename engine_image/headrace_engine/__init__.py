"""The engine: transformers models on paged attention of our own, behind an OpenAI HTTP server.

Torch and transformers live here and nowhere else. `python -m headrace_engine serve MODEL` is the container entry.
"""

import os

# OpenMP's threads spin while they wait for each other. On a machine that others use too, a spinning thread keeps the
# one it waits for off its core: a step on 2 cores with 3 busy neighbours took 2.7 s spinning and 0.29 s sleeping.
# libgomp reads this once, when torch is first imported, so it must be here.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
