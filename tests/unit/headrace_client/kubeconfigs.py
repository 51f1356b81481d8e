"""Kubeconfigs with one context, for tests to change."""

from pathlib import Path
from typing import Any

import yaml


def kubeconfig(
    path: Path, *, name: str = "one", user: Any = None, cluster: Any = None, current: str | None = "one"
) -> Path:
    cluster = cluster or {"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": True}
    document = {
        "current-context": current,
        "contexts": [{"name": name, "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": "secret"} if user is None else user}],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document))
    return path
