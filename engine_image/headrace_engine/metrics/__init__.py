"""What the engine counts. Names, labels and buckets are in `headrace_core.metric_names`."""
