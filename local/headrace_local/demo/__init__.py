"""`headrace local demo`: the whole loop on the embedded cluster, each step checked.

story.py     pure: calibration -> rates, thresholds, windows
predict.py   pure: story -> how many requests should meet the SLO, by the simulator
manifests.py pure: story -> the resources that the demo applies
stages.py    progress: each step's title, time, facts and check
client.py    a streamed chat completion and a stretch of mixed load, as a user would send them
waiting.py   waits for an object to reach a state
watching.py  prints a TuningRun's status as it changes
report.py    the closing table
run.py       the steps in order
"""
