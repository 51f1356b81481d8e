"""Builds the objects of a TuningRun's trial, which copy the service's. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headrace_api import names
from headrace_api.v1alpha1.inferenceservice import InferenceService
from headrace_api.v1alpha1.tuningrun import TuningRun
from headrace_operator.cluster.owned import Owned
from headrace_operator.engines.base import WantedConfig
from headrace_operator.engines.registry import DEFINITIONS
from headrace_operator.service.model_sources import model_source
from headrace_operator.service.pod import EngineObjects, engine_template
from headrace_operator.settings import Images


def trial_objects(
    run: TuningRun, service: InferenceService, config: WantedConfig, *, images: Images, token: str, revision: str
) -> tuple[dict[str, Any], ...]:
    """One pod like the service's, with its effective config as the baseline. `revision` is the service's template.

    The selector is by run, and no stable selector matches it: no production request reaches the trial.
    """
    name, engine = run.metadata.name, DEFINITIONS[service.spec.engine.kind]
    labels = names.trial_labels(service.metadata.name, name)
    selector = {names.TUNING_RUN_LABEL: name, names.TRACK_LABEL: names.TRACK_TRIAL}
    objects = EngineObjects(config_map=names.trial_name(name), admin_secret=names.trial_admin_secret(name))
    pod_labels = {**labels, names.REVISION_LABEL: revision}
    template = engine_template(service, model_source(service.spec.model), objects, images=images, labels=pod_labels)
    slo = run.spec.slo or service.spec.slo
    trial = replace(config, slo=slo.for_engine() if slo else None)
    owned = Owned(run.metadata.namespace or "", labels, run.owner_reference())
    return (
        owned.secret(objects.admin_secret, token),
        owned.config_map(objects.config_map, engine.config_data(trial)),
        owned.service(names.trial_name(name), selector, engine.service_ports()),
        owned.deployment(
            names.trial_name(name),
            template,
            selector=selector,
            replicas=1,
            strategy={"type": "Recreate"},
            startup_seconds=engine.startup_seconds,
        ),
    )
