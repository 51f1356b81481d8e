"""Short, stable digests of JSON values, and the admin token of one service."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

DIGEST_LENGTH = 10  # 40 bits: two revisions of one service collide once in a million million


def canonical(value: Any) -> str:
    """The one canonical JSON text of `value`: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: Any) -> str:
    """Ten hexadecimal digits that identify a JSON value."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:DIGEST_LENGTH]


def template_revision(template: Mapping[str, Any], boot: Mapping[str, Any], *, token: str) -> str:
    """Revision of everything whose change needs a new process: pod template, boot-class config, admin token.

    The token counts since a running engine knows only the one that it was started with.
    """
    return digest({"template": template, "boot": boot, "token": digest(token)})


def service_token(root: str, *, namespace: str, service: str) -> str:
    """Admin token of one InferenceService, derived from the operator's root token."""
    return _derive(root, f"{namespace}/{service}")


def trial_token(root: str, *, namespace: str, run: str) -> str:
    """Admin token of a tuning run's trial pod. Never equal to a service's: no name contains a colon."""
    return _derive(root, f"trial:{namespace}/{run}")


def _derive(root: str, message: str) -> str:
    return hmac.new(root.encode(), message.encode(), hashlib.sha256).hexdigest()
