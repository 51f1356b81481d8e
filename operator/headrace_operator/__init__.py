"""The operator: InferenceServices become engines, TuningRuns become studies whose proposals are rolled out.

Kopf fills a cache and a queue (`runtime`); a controller takes a key, plans, applies, and writes one status. Only
controllers, `cluster.apply`, `cluster.events`, `engines.headrace_admin` and `rollout.windows` do I/O; the rest is pure.
"""
