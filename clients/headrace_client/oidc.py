"""The OIDC auth-provider of a kubeconfig: checks whether the id token is still good, and asks for a new one if not.

Replaces the `kubernetes` package's own requests, which verify the provider's certificate only if the kubeconfig has a
CA (and then fail, as they pass the file's name as a TLS context), insist on a new refresh token, and decode id tokens
with the wrong alphabet.
"""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from headrace_client.errors import KubeconfigError

MARGIN = 60.0  # seconds before its end at which a token counts as expired
_TIMEOUT = aiohttp.ClientTimeout(total=30)


def expired(token: str) -> bool:
    """Whether an id token expires within a minute, or is not a JWT with an `exp` claim."""
    try:
        payload = token.split(".")[1]
        end = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["exp"]
        return float(end) - MARGIN <= time.time()  # noqa: TID251  (an I/O module: the provider's times are wall time)
    except (ValueError, KeyError, IndexError, TypeError):
        return True


async def refresh(config: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """A new `id-token`, and a new `refresh-token` if the provider sends one. Raises `KubeconfigError`.

    `config` is the auth-provider's; the path in its `idp-certificate-authority` is relative to `folder`.
    """
    issuer = str(config.get("idp-issuer-url", "")).rstrip("/")
    if not config.get("refresh-token"):
        raise KubeconfigError(f"the id token of {issuer} is expired, and there is no refresh-token: sign in again")
    form = {"grant_type": "refresh_token", "refresh_token": str(config["refresh-token"])}
    client = aiohttp.encode_basic_auth(str(config.get("client-id", "")), str(config.get("client-secret") or ""))
    connector = aiohttp.TCPConnector(ssl=_tls(config, folder))
    try:
        async with aiohttp.ClientSession(
            connector=connector, timeout=_TIMEOUT, trust_env=True, raise_for_status=True
        ) as session:
            async with session.get(f"{issuer}/.well-known/openid-configuration") as found:
                endpoint = (await found.json())["token_endpoint"]
            async with session.post(endpoint, data=form, headers={"Authorization": client}) as answer:
                tokens = await answer.json()
        renewed = {"id-token": str(tokens["id_token"])}
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
        why = str(error) or type(error).__name__
        raise KubeconfigError(f"{issuer} gave no new id token: {why}; sign in again") from error
    if tokens.get("refresh_token"):
        renewed["refresh-token"] = str(tokens["refresh_token"])
    return renewed


def _tls(config: Mapping[str, Any], folder: Path) -> ssl.SSLContext:
    data, path = config.get("idp-certificate-authority-data"), config.get("idp-certificate-authority")
    if data:
        return ssl.create_default_context(cadata=base64.b64decode(data).decode())
    return ssl.create_default_context(cafile=str(folder / path) if path else None)
