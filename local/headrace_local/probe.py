"""Small HTTP requests on loopback to check that a process of the slot serves. No client library, no retries."""

from __future__ import annotations

import http.client
import json
import ssl
from typing import Any
from urllib.parse import urlsplit

from headrace_local.pki import KeyPair, Pki

TIMEOUT_SECONDS = 5.0


def tls(pki: Pki, pair: KeyPair | None = None, *, etcd: bool = False) -> ssl.SSLContext:
    """A context that trusts the slot's authority (or etcd's) and presents the certificate `pair`."""
    context = ssl.create_default_context(cafile=str((pki.etcd_ca if etcd else pki.ca).cert))
    if pair is not None:
        context.load_cert_chain(pair.cert, pair.key)
    return context


def get(url: str, context: ssl.SSLContext | None = None) -> tuple[int, bytes]:
    """Status and body of a GET; (0, b"") if nothing answers."""
    parts = urlsplit(url)
    path = f"{parts.path}?{parts.query}" if parts.query else parts.path
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(parts.netloc, timeout=TIMEOUT_SECONDS, context=context)
    else:
        connection = http.client.HTTPConnection(parts.netloc, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def answers(url: str, context: ssl.SSLContext | None = None) -> bool:
    """Whether a GET is answered with 200."""
    return get(url, context)[0] == 200


def get_json(url: str, context: ssl.SSLContext | None = None) -> dict[str, Any] | None:
    """The JSON object that a GET returns; None for another status than 200 or another kind of value."""
    status, body = get(url, context)
    if status != 200:
        return None
    value = json.loads(body)
    return value if isinstance(value, dict) else None
