"""prometheus.yml: the labels that every query relies on, and nothing scraped that is not ours."""

from pathlib import Path

import pytest
import yaml

from headrace_local.binaries import Binaries
from headrace_local.layout import Slot
from headrace_local.pki import pki_of
from headrace_local.prometheus import configuration, prometheus_spec, rbac

GOLDEN = Path(__file__).parents[2] / "golden" / "local" / "prometheus.yml"


def test_the_configuration_is_the_golden_one():
    text = yaml.safe_dump(configuration(Path("/state/pki/prometheus.kubeconfig")), sort_keys=False)
    assert text == GOLDEN.read_text()


def test_the_command_line_keeps_to_loopback_and_the_slots_folder(tmp_path: Path):
    slot = Slot(5, tmp_path / "local" / "slot-5", tmp_path)
    spec = prometheus_spec(slot, pki_of(slot), Binaries({"prometheus": Path("/bin/prometheus")}))
    assert "--web.listen-address=127.0.0.1:16507" in spec.argv
    config = Path(next(word for word in spec.argv if word.startswith("--config.file=")).split("=")[1])
    loaded = yaml.safe_load(config.read_text())
    discovery = loaded["scrape_configs"][0]["kubernetes_sd_configs"]
    assert discovery == [{"role": "pod", "kubeconfig_file": str(slot.pki_dir / "prometheus.kubeconfig")}]


def test_its_user_may_only_find_pods():
    role, binding = rbac()
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    assert binding["subjects"][0]["name"] == "headrace-prometheus"
    assert binding["roleRef"]["name"] == role["metadata"]["name"]


@pytest.mark.parametrize("label", ["namespace", "pod", "pod_uid", "service", "track", "tuning_run"])
def test_every_label_of_the_contract_is_set(label: str):
    relabels = configuration(Path("/k"))["scrape_configs"][0]["relabel_configs"]
    assert label in [entry.get("target_label") for entry in relabels]
