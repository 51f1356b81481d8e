"""The demo: eight steps, each shown, timed and checked. The first failed check ends it with exit code 1."""

from __future__ import annotations

import asyncio
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.markup import escape

from headrace_api import names
from headrace_client.kube import Kube
from headrace_client.prom import Prometheus
from headrace_client.resources import INFERENCE_SERVICES, PODS, TUNING_RUNS
from headrace_client.window_reader import read_window
from headrace_core.evidence.windows import WindowStats
from headrace_core.sim.calibration import Calibration
from headrace_local import binaries, cluster, helm
from headrace_local.demo import client, manifests, report, watching
from headrace_local.demo import story as told
from headrace_local.demo.manifests import NAMESPACE, RUN, SERVICE, Manifest
from headrace_local.demo.predict import predicted_attainment
from headrace_local.demo.stages import DemoStage, Stages, evidence_folder
from headrace_local.demo.story import Story, engine_threads, tell
from headrace_local.demo.waiting import condition, wait_for
from headrace_local.errors import LocalError
from headrace_local.layout import Slot
from headrace_local.leftovers import find_leftovers
from headrace_local.progress import RichSteps

FIELD_MANAGER = "headrace-demo"
GPUS = 2
QUESTION = "Explain in two sentences what a headrace is in a water mill."
Object = dict[str, Any]


@dataclass(slots=True)
class Demo:
    """What the steps pass on to each other."""

    slot: Slot
    stages: Stages
    console: Console
    evidence: Path
    kube: Kube
    prometheus: Prometheus

    def apply_to_disk(self, name: str, body: Manifest) -> Path:
        """Write a manifest to the evidence folder, to be read and applied again."""
        path = self.evidence / f"{name}.yaml"
        path.write_text(yaml.safe_dump(body, sort_keys=False))
        return path


def run_demo(slot: Slot, *, keep: bool, console: Console) -> None:
    """Run all steps. Raises `LocalError` if a check fails; takes the cluster down unless `keep`."""
    if cluster.status(slot).state is cluster.SlotState.UP:
        raise LocalError(
            f"A cluster is up in slot {slot.number} already.",
            why="The demo needs a fresh one, so that everything it shows is its own work.",
            todo=f"End it with `headrace local down --slot {slot.number}`, or choose another slot: `--slot N`.",
        )
    evidence = evidence_folder()
    stages = Stages(total=7 if keep else 8, console=console)
    steps = RichSteps(console)
    with stages.stage("Binaries and model"):
        programs = binaries.ensure(slot.cache_dir, os.environ, steps)
        with steps.step("Demo model (SmolLM2-135M-Instruct)"):
            model = asyncio.run(client.demo_model())
    try:
        with stages.stage(f"Embedded cluster: a real control plane and kubelet, {GPUS} pretend GPUs"):
            cluster.up(slot, gpus=GPUS, steps=steps)
        with stages.stage("helm install headrace") as stage:
            install_chart(slot, programs["helm"])
            stage.say("CRDs, operator (its own service account), RBAC, Secret")
        asyncio.run(_with_cluster(slot, stages, console, evidence, model))
    finally:
        if keep:
            _say_how_to_reach(slot, console)
        else:
            _tear_down(slot, stages)
    console.print(report.times(stages.times))
    console.print(f"Evidence: {evidence}/ (manifests, calibration, every trial, both windows)")


def install_chart(slot: Slot, program: str) -> None:
    """Install the chart with values for this slot and wait until the operator is ready."""
    values = {"prometheus": {"url": slot.prometheus_url}}
    helm.install(program, values, kubeconfig=slot.kubeconfig, home=slot.state_dir / "helm")


async def _with_cluster(slot: Slot, stages: Stages, console: Console, evidence: Path, model: Path) -> None:
    async with Kube.auto(kubeconfig=slot.kubeconfig) as kube, Prometheus(slot.prometheus_url) as prometheus:
        demo = Demo(slot, stages, console, evidence, kube, prometheus)
        with stages.stage("InferenceService, with a prefill chunk far too large for its SLO") as stage:
            story = await _calibrate(demo, stage, model)
            url = await serve(demo, stage, story, model)
        with stages.stage("A chat completion, then a minute of mixed load") as stage:
            await _chat(demo, url)
            await _mixed_load(demo, stage, story, url)
        before = await stable_pods(kube)
        with stages.stage("TuningRun: search, verify, apply in place, check again") as stage:
            run = await _tune(demo, stage, story)
        with stages.stage("The same pods, a better config") as stage:
            await _compare(demo, stage, run, before)


async def _calibrate(demo: Demo, stage: DemoStage, model: Path) -> Story:
    threads = engine_threads(len(os.sched_getaffinity(0)))
    measured = await client.calibrate(model, threads=threads)
    (demo.evidence / "calibration.json").write_text(json.dumps(measured, indent=2))
    calibration = Calibration.from_json(measured)
    story = tell(calibration)
    facts = calibration.facts
    features = ", ".join(facts["cpu_features"]) or "no vector features"
    stage.say(f"calibrated: {facts['device']} ({features}), {facts['dtype']}, {facts['threads']} thread(s)")
    stage.say(
        f"a whole long prompt stalls decodes for {1000 * story.whole:.0f} ms, one slice of it for "
        f"{1000 * story.sliced:.0f} ms: SLO ITL {1000 * story.itl:.0f} ms, TTFT {story.ttft:.1f} s"
    )
    bad, good = (predicted_attainment(story, calibration, knobs) for knobs in (told.BAD_KNOBS, told.GOOD_KNOBS))
    stage.say(
        f"predicted by the scheduler on these step times: {bad:.0%} of the requests meet the SLO with whole prompts, "
        f"{good:.0%} with slices of {told.SLICE}"
    )
    stage.say(f"load {story.rate:g} requests/s, {story.trials} trials of {story.window} s")
    return story


async def serve(demo: Demo, stage: DemoStage, story: Story, model: Path) -> str:
    """Apply the InferenceService and wait for Ready=True; its address."""
    await demo.kube.apply(manifests.namespace(), field_manager=FIELD_MANAGER)
    body = manifests.inference_service(story, model)
    stage.say(f"kubectl apply -f {demo.apply_to_disk('inferenceservice', body)}")
    await demo.kube.apply(body, field_manager=FIELD_MANAGER)
    ready = await wait_for(demo.kube, INFERENCE_SERVICES, SERVICE, NAMESPACE, _ready, seconds=180)
    stage.say(escape(str(condition(ready, "Ready").get("message", ""))))
    stage.check(True, "Ready=True", "")
    return str(ready["status"]["endpoint"]["url"])


def _ready(service: Any) -> Object | None:
    current = service["metadata"]["generation"] == service.get("status", {}).get("observedGeneration")
    return dict(service) if current and condition(service, "Ready").get("status") == "True" else None


async def _chat(demo: Demo, url: str) -> None:
    demo.console.print(f"    [dim]{url}/v1/chat/completions[/dim]  {QUESTION}\n    [italic]", end="", highlight=False)
    async for piece in client.chat(url, SERVICE, QUESTION, max_tokens=64):
        demo.console.print(escape(piece), end="", style="italic", highlight=False)
    demo.console.print()


async def _mixed_load(demo: Demo, stage: DemoStage, story: Story, url: str) -> None:
    start = time.time()  # noqa: TID251 - Prometheus speaks Unix time
    summary = await client.mixed_load(url, story, seed=1)
    end = time.time()  # noqa: TID251
    labels = {"namespace": NAMESPACE, "service": SERVICE, "track": names.TRACK_STABLE}
    stats = await read_window(demo.prometheus, pods=labels, start=start, end=end)
    (demo.evidence / "mixed-load.json").write_text(json.dumps({"client": summary, "prometheus": stats.to_dict()}))
    stage.say(_window_text(stats))
    stage.check(stats.counts.requests > 0, "requests were served and scraped", "Prometheus saw none in this minute")
    stage.check(
        stats.counts.attainment < story.attainment,
        f"the SLO is missed, as meant: {stats.counts.attainment:.0%} of {story.attainment:.0%}",
        f"{stats.counts.attainment:.0%} of the requests already met the SLO, so there is nothing to tune",
        "The calibration does not fit this machine: run the demo again when it is quieter.",
    )


def _window_text(stats: WindowStats) -> str:
    return (
        f"{stats.counts.requests:.0f} requests, {stats.counts.throughput:.1f} tokens/s, "
        f"TTFT p50 {1000 * stats.ttft_p50:.0f} ms, p95 {1000 * stats.ttft_p95:.0f} ms, "
        f"ITL p50 {1000 * stats.itl_p50:.0f} ms, p99 {1000 * stats.itl_p99:.0f} ms, "
        f"SLO attainment {stats.counts.attainment:.0%} (from Prometheus)"
    )


async def stable_pods(kube: Kube) -> dict[str, tuple[str, str, int]]:
    """Each stable pod's uid, container start and restarts: what a change in place must not alter."""
    label_selector = names.selector_string(names.stable_selector(SERVICE))
    pods = await kube.list(PODS, NAMESPACE, label_selector)
    return {pod["metadata"]["name"]: _identity(pod) for pod in pods}


def _identity(pod: Object) -> tuple[str, str, int]:
    container = pod["status"]["containerStatuses"][0]
    return pod["metadata"]["uid"], container["state"]["running"]["startedAt"], container["restartCount"]


async def _tune(demo: Demo, stage: DemoStage, story: Story) -> Object:
    body = manifests.tuning_run(story)
    stage.say(f"kubectl apply -f {demo.apply_to_disk('tuningrun', body)}; kubectl -n {NAMESPACE} get tunerun -w shows:")
    await demo.kube.apply(body, field_manager=FIELD_MANAGER)
    teller = watching.Teller(stage)
    run = await wait_for(demo.kube, TUNING_RUNS, RUN, NAMESPACE, teller.tell, seconds=900)
    (demo.evidence / "tuningrun-status.json").write_text(json.dumps(run["status"], indent=2))
    verdict = run["status"].get("verdict")
    stage.check(
        verdict == "Improved",
        "verdict Improved: better than the baseline beyond the noise",
        f"the verdict is {verdict}: {run['status'].get('message', '')}",
        f"Each trial is in {demo.evidence}/tuningrun-status.json.",
    )
    return run


async def _compare(demo: Demo, stage: DemoStage, run: Object, before: dict[str, tuple[str, str, int]]) -> None:
    rollout = run["status"].get("rollout") or {}
    old = run["status"]["baseline"]["knobs"]
    new = run["status"]["proposal"]["knobs"]
    demo.console.print(report.before_after(rollout, old, {**old, **new}))
    stage.check(rollout.get("phase") == "Kept", "kept after the check under the same load", str(rollout.get("message")))
    stage.check(
        await stable_pods(demo.kube) == before,
        "applied without a restart: pod UID, start time and restart count are unchanged",
        f"before {before}, now {await stable_pods(demo.kube)}",
    )


def _tear_down(slot: Slot, stages: Stages) -> None:
    with stages.stage("Tear down") as stage:
        cluster.down(slot)
        left = find_leftovers(slot)
        stage.check(not left, "no process, mount or port is left over", str(left))


def _say_how_to_reach(slot: Slot, console: Console) -> None:
    console.print(
        f"\nThe cluster stays up. Reach it:\n  export KUBECONFIG={slot.kubeconfig}\n"
        f"  headrace local kubectl -- -n {NAMESPACE} get infsvc,tunerun,pods\n"
        f"  Prometheus: {slot.prometheus_url}\nEnd it: headrace local down",
        highlight=False,
    )
