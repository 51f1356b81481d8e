"""A kubeconfig whose user signs in by a command, as those of EKS, GKE and AKS do."""

import base64
import json
import sys
from pathlib import Path
from typing import Any

import yaml

VERSION = "client.authentication.k8s.io/v1"


def with_command(kubeconfig: Path, folder: Path, status: dict[str, Any]) -> Path:
    """The kubeconfig with a command as its login that prints `answer.json`, and leaves a dot in `runs` each time."""
    document = yaml.safe_load(kubeconfig.read_text())
    body = {"apiVersion": VERSION, "kind": "ExecCredential", "status": status}
    (folder / "answer.json").write_text(json.dumps(body))
    (folder / "plugin.py").write_text(
        "from pathlib import Path\nhere = Path(__file__).parent\n"
        "with (here / 'runs').open('a') as runs:\n    runs.write('.')\n"
        "print((here / 'answer.json').read_text())\n"
    )
    plugin = {"apiVersion": VERSION, "command": sys.executable, "args": [str(folder / "plugin.py")]}
    document["users"] = [{"name": user["name"], "user": {"exec": plugin}} for user in document["users"]]
    path = folder / "exec.kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


def administrator(kubeconfig: Path) -> dict[str, str]:
    """Status of an ExecCredential with the client certificate that the kubeconfig holds."""
    user = yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]
    return {
        "clientCertificateData": base64.b64decode(user["client-certificate-data"]).decode(),
        "clientKeyData": base64.b64decode(user["client-key-data"]).decode(),
    }
