"""The Job as the operator starts it: real API server, real engine on a tiny model, real Prometheus. No speeds."""

import asyncio
import json
import os
import signal
import sys
from datetime import UTC, datetime

from headrace_api import names
from headrace_api.v1alpha1.record_codec import decode
from headrace_api.v1alpha1.records import RunPhase, StudyVerdict
from headrace_client.resources import CONFIG_MAPS, TUNING_RUNS

RUN = {
    "apiVersion": names.API_VERSION,
    "kind": names.TUNING_RUN_KIND,
    "metadata": {"name": "tiny"},
    "spec": {
        "serviceRef": {"name": "tiny"},
        "slo": {"ttft": {"threshold": "5s"}, "itl": {"threshold": "2s"}, "attainment": 0.5},
        "knobs": [{"name": "prefillChunkSize", "choices": [16, 64, 256]}],
        "budget": {"trials": 3},
        "workload": {
            "rate": 8.0, "duration": "3s", "warmup": "1s", "promptTokens": {"short": {"mean": 12}},
            "outputTokens": {"mean": 8},
        },
        "verification": {"blocks": 2},
        "apply": "Auto",
    },
}  # fmt: skip


async def start(engine, prometheus_url, kubeconfig, namespace) -> asyncio.subprocess.Process:
    command = [sys.executable, "-m", "headrace_tuner", "run", "--run", f"{namespace}/tiny"]
    command += ["--trial-url", engine.url, "--trial-admin-url", engine.admin_url, "--service-url", engine.url]
    command += ["--prometheus-url", prometheus_url]
    environment = os.environ | {"KUBECONFIG": str(kubeconfig), "HOSTNAME": "tiny-tuner-abcde"}
    return await asyncio.create_subprocess_exec(
        *command, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )


async def records(kube, namespace):
    body = await kube.get(CONFIG_MAPS, "tiny-records", namespace) or {}
    return decode(body.get("data") or {})


async def test_a_job_that_is_killed_goes_on_and_ends(engine, prometheus_url, kube, kubeconfig, namespace) -> None:
    await kube.create(RUN | {"metadata": {"name": "tiny", "namespace": namespace}})
    job = await start(engine, prometheus_url, kubeconfig, namespace)
    while not (await records(kube, namespace)).trials:
        assert job.returncode is None, (await job.stdout.read()).decode()
        await asyncio.sleep(0.2)
    os.kill(job.pid, signal.SIGKILL)
    await job.communicate()
    before = await records(kube, namespace)

    job = await start(engine, prometheus_url, kubeconfig, namespace)
    output, _ = await job.communicate()
    assert job.returncode == 0, output.decode()
    after = await records(kube, namespace)
    assert after.trials[: len(before.trials)] == before.trials, "an ended trial is not measured again"
    assert after.study.baseline.knobs == before.study.baseline.knobs, "the baseline is not what a trial left behind"
    assert [trial.number for trial in after.trials] == list(range(len(after.trials)))
    assert after.study.verdict in set(StudyVerdict)
    assert after.study.phase is RunPhase.COMPLETED


async def test_the_load_stays_on_until_the_rollout_has_ended(
    engine, prometheus_url, kube, kubeconfig, namespace
) -> None:
    created = await kube.create(RUN | {"metadata": {"name": "tiny", "namespace": namespace}})
    study = {"phase": "Proposed", "verdict": "Improved", "baseline": {"knobs": {"prefillChunkSize": 256}}}
    study["proposal"] = {"knobs": {"prefillChunkSize": 64}}
    await kube.create(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "tiny-records", "namespace": namespace},
            "data": {names.STUDY_KEY: json.dumps(study)},
        }
    )
    job = await start(engine, prometheus_url, kubeconfig, namespace)
    seen = await asyncio.to_thread(finished, engine)
    while await asyncio.to_thread(finished, engine) < seen + 20:
        assert job.returncode is None, (await job.stdout.read()).decode()
        await asyncio.sleep(0.2)
    rollout = {"phase": "Kept", "startedAt": datetime.now(UTC).isoformat().replace("+00:00", "Z")}
    body = {"apiVersion": names.API_VERSION, "kind": names.TUNING_RUN_KIND}
    metadata = {"name": "tiny", "namespace": namespace, "resourceVersion": created["metadata"]["resourceVersion"]}
    status = {"phase": "Completed", "rollout": rollout}
    await kube.replace_status(TUNING_RUNS, created | body | {"metadata": metadata, "status": status})
    output, _ = await asyncio.wait_for(job.communicate(), 60)
    assert job.returncode == 0, output.decode()
    assert b"ended the load" in output


def finished(engine) -> float:
    import urllib.request

    with urllib.request.urlopen(engine.url + "/metrics") as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:request_success_total"))


async def test_what_cannot_work_ends_with_a_reason_in_log_and_records(
    engine, prometheus_url, kube, kubeconfig, namespace
) -> None:
    other = RUN["spec"] | {"slo": {"ttft": {"threshold": "1s"}}}
    await kube.create(RUN | {"metadata": {"name": "tiny", "namespace": namespace}, "spec": other})
    job = await start(engine, prometheus_url, kubeconfig, namespace)
    output, _ = await job.communicate()
    assert job.returncode == 1, output.decode()
    assert b"start the engine with that one" in output
    study = (await records(kube, namespace)).study
    assert study.phase is RunPhase.FAILED
    assert "start the engine with that one" in study.message
