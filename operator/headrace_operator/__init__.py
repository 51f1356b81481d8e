"""The operator: InferenceServices become engines, TuningRuns become studies and measured rollouts.

Pure: effective, tuned, pod_template, desired, plan, observe, readiness, status, verdict, rollout, tuning_desired,
tuning_checks, tuning_status. I/O: engines, measure, events, writer. Shell: workqueue, reconciler, tuning_reconciler,
handlers (Kopf), app.
"""
