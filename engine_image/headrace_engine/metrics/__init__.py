"""The engine's metrics. Their names, labels and buckets are in `headrace_core.metric_names`."""
