"""`tests/unit` mirrors the packages: each file lies where the module that it tests lies, and no module is left out."""

from pathlib import Path

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "tests" / "unit"
LIGHT = ("core", "api", "client", "operator", "tuner")  # the packages whose every module is accounted for

# Modules that are tested through others, and where.
ELSEWHERE = {
    "headrace_core/knobs/table": "unit/headrace_core/knobs/test_resolve.py",
    "headrace_core/scheduler/admission_budget": "unit/headrace_core/scheduler/test_admission.py",
    "headrace_core/scheduler/decodes": "unit/headrace_core/scheduler/test_scheduler_memory.py",
    "headrace_core/scheduler/invariants": "property/headrace_core/test_scheduler_properties.py",
    "headrace_core/scheduler/planning": "unit/headrace_core/scheduler/test_scheduler_steps.py",
    "headrace_core/scheduler/policies": "unit/headrace_core/scheduler/test_admission.py",
    "headrace_core/scheduler/prefills": "unit/headrace_core/scheduler/test_scheduler_steps.py",
    "headrace_core/scheduler/state": "unit/headrace_core/scheduler/test_scheduler_contract.py",
    "headrace_core/scheduler/waiting_queue": "unit/headrace_core/scheduler/test_scheduler_steps.py",
    "headrace_core/trace/format": "unit/headrace_core/trace/test_replay.py",
    "headrace_core/trace/history": "unit/headrace_core/trace/test_explain.py",
    "headrace_core/trace/record": "unit/headrace_core/trace/test_replay.py",
    "headrace_api/crd": "unit/headrace_api/test_structural.py",
    "headrace_api/generate": "unit/headrace_api/test_structural.py",
    "headrace_api/metrics_page": "unit/headrace_api/test_knobs_page.py",
    "headrace_api/names": "unit/headrace_api/v1alpha1/test_conditions.py",
    "headrace_api/reasons": "unit/headrace_api/test_structural.py",
    "headrace_api/v1alpha1/inferenceservice": "unit/headrace_api/test_base.py",
    "headrace_api/v1alpha1/knobs": "unit/headrace_api/test_base.py",
    "headrace_api/v1alpha1/records": "unit/headrace_api/v1alpha1/test_record_codec.py",
    "headrace_api/v1alpha1/search": "unit/headrace_api/test_base.py",
    "headrace_api/v1alpha1/slo": "unit/headrace_api/test_base.py",
    "headrace_api/v1alpha1/tuningrun": "unit/headrace_api/test_base.py",
    "headrace_api/v1alpha1/workload": "unit/headrace_api/test_base.py",
    "headrace_client/session": "unit/headrace_client/test_engine.py",
    "headrace_client/terminal": "unit/headrace_tuner/test_cli.py",
    "headrace_client/transport": "unit/headrace_client/test_kube.py",
    "headrace_operator/__main__": "e2e/test_inference_service.py",
    "headrace_operator/app": "apiserver/test_operator.py",
    "headrace_operator/engines/registry": "contract/headrace_operator/test_engines.py",
    "headrace_operator/runtime/handlers": "apiserver/test_operator.py",
    "headrace_operator/tuning/run_pass": "unit/headrace_operator/tuning/test_controller.py",
    "headrace_tuner/__main__": "apiserver/headrace_tuner/test_job.py",
    "headrace_tuner/cli_study": "contract/headrace_tuner/test_live_engine.py",
    "headrace_tuner/connections": "contract/headrace_tuner/test_live_engine.py",
    "headrace_tuner/job": "apiserver/headrace_tuner/test_job.py",
    "headrace_tuner/logs": "unit/headrace_core/test_json_log.py",
    "headrace_tuner/measure/background_load": "unit/headrace_tuner/test_cli.py",
    "headrace_tuner/report/lines": "contract/headrace_tuner/test_live_engine.py",
    "headrace_tuner/settings": "unit/headrace_tuner/test_cli.py",
}
# Nothing but declarations: values, protocols, errors.
DECLARATIONS = {
    "headrace_core/errors", "headrace_core/scheduler/events", "headrace_core/scheduler/observer",
    "headrace_core/scheduler/sequence", "headrace_core/scheduler/wait_cause", "headrace_client/errors",
    "headrace_client/resources", "headrace_operator/dependencies", "headrace_operator/engines/base",
    "headrace_operator/errors", "headrace_operator/protocols", "headrace_operator/rollout/measurement",
    "headrace_operator/runtime/requeue", "headrace_tuner/errors", "headrace_tuner/targets/base",
}  # fmt: skip


def modules() -> set[str]:
    """Paths below the top-level folders, without their suffix: `headrace_core/scheduler/blocks`."""
    files = (path for path in ROOT.glob("*/headrace_*/**/*.py") if path.stem != "__init__")
    return {path.relative_to(ROOT).with_suffix("").as_posix().split("/", 1)[1] for path in files}


def module_of(path: Path, known: set[str]) -> str | None:
    """The module that a test file is for: `test_NAME.py`, or `test_NAME_ASPECT.py` where one file is not enough."""
    folder = path.parent.relative_to(UNIT).as_posix()
    words = path.stem.removeprefix("test_").split("_")
    names = (f"{folder}/{'_'.join(words[:end])}" for end in range(len(words), 0, -1))
    return next((name for name in names if name in known), None)


def test_each_file_is_for_a_module_that_lies_in_the_same_place() -> None:
    known = modules()
    files = sorted(UNIT.glob("headrace_*/**/test_*.py"))
    assert len(files) > 100
    lost = [path.relative_to(ROOT).as_posix() for path in files if module_of(path, known) is None]
    assert lost == []


def test_each_module_of_the_light_packages_has_its_tests() -> None:
    known = modules()
    own = {module_of(path, known) for path in UNIT.glob("headrace_*/**/test_*.py")}
    light = {name for name in known if name.split("/")[0].removeprefix("headrace_") in LIGHT}
    assert sorted(light - own - ELSEWHERE.keys() - DECLARATIONS) == []
    assert sorted(name for name in {*ELSEWHERE, *DECLARATIONS} if name in own or name not in known) == []
    assert sorted(path for path in ELSEWHERE.values() if not (ROOT / "tests" / path).exists()) == []
