"""The step thread: calls in, plan, run, commit, events out."""
