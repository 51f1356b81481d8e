"""The text of a kubeconfig file (pure)."""

from __future__ import annotations

import base64

import yaml


def client_kubeconfig(*, name: str, server: str, ca: bytes, cert: bytes, key: bytes) -> str:
    """A kubeconfig with one cluster, user and context, all called `name`, with the PEM data embedded.

    With data instead of paths, the file can be copied, or mounted into a container by itself.
    """
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority-data": _data(ca)}}],
        "users": [{"name": name, "user": {"client-certificate-data": _data(cert), "client-key-data": _data(key)}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": "default"}}],
        "current-context": name,
    }
    return yaml.safe_dump(document, sort_keys=False)


def _data(pem: bytes) -> str:
    return base64.b64encode(pem).decode("ascii")
