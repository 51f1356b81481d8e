"""One TuningRun: its trial, its Job, its status."""
