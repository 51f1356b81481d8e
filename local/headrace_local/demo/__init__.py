"""`headrace local demo`: the whole loop on the embedded cluster, each step checked.

story.py     pure: calibration -> rates, thresholds, windows
manifests.py pure: story -> the resources that the demo applies
stages.py    progress: each step's title, time, facts and check
client.py    a streamed chat completion and a stretch of mixed load, as a user would send them
readings.py  Prometheus -> the figures of one window
report.py    the closing table
run.py       the steps in order
"""
