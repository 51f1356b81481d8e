"""The tuning Job: its permissions and its arguments."""

from operator_resources import IMAGES, tuning_run

from headrace_api.v1alpha1.tuningrun import TuningRun
from headrace_operator.tuning.job_objects import JobUrls, job_objects, job_rules

RUN = TuningRun.parse(tuning_run())
URLS = JobUrls(trial="http://t:1", trial_admin="http://t:2", service="http://s:1", prometheus="http://p")


def test_the_job_may_read_its_run_and_service_and_write_its_records_and_nothing_else() -> None:
    allowed = {(rule["resources"][0], rule["resourceNames"][0], *rule["verbs"]) for rule in job_rules(RUN)}
    assert allowed == {
        ("tuningruns", "tune", "get"),
        ("inferenceservices", "chat", "get"),
        ("configmaps", "tune-records", "get", "create", "patch"),
    }


def test_the_records_are_there_before_the_job_and_the_role_before_its_binding() -> None:
    kinds = [body["kind"] for body in job_objects(RUN, URLS, images=IMAGES)]
    assert kinds == ["ConfigMap", "ServiceAccount", "Role", "RoleBinding", "Job"]


def test_the_tuner_gets_every_address() -> None:
    job = job_objects(RUN, URLS, images=IMAGES)[-1]
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    flags = dict(zip(container["command"][4::2], container["command"][5::2], strict=True))
    assert flags == {
        "--run": "default/tune",
        "--trial-url": "http://t:1",
        "--trial-admin-url": "http://t:2",
        "--service-url": "http://s:1",
        "--prometheus-url": "http://p",
    }
    assert container["image"] == IMAGES.tuner
    assert pod["restartPolicy"] == "Never"
