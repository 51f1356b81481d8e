"""The OIDC auth-provider, against an OIDC provider on loopback."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from headrace_client.connection import auto_connection
from headrace_client.errors import KubeconfigError
from headrace_client.oidc import expired

FAR = 4_000_000_000


def jwt(end: float, **claims: Any) -> str:
    payload = base64.urlsafe_b64encode(json.dumps({"exp": end, **claims}).encode()).decode().rstrip("=")
    return f"e30.{payload}.signature"


class Provider:
    def __init__(self) -> None:
        self.forms: list[dict[str, Any]] = []
        self.headers: list[str] = []
        self.tokens: dict[str, str] = {}
        self.url = ""

    async def discovery(self, _: web.Request) -> web.Response:
        return web.json_response({"token_endpoint": f"{self.url}/token"})

    async def token(self, request: web.Request) -> web.Response:
        self.forms.append(dict(await request.post()))
        self.headers.append(request.headers["Authorization"])
        return web.json_response(self.tokens, status=200 if self.tokens else 400)


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    made = Provider()
    app = web.Application()
    app.router.add_get("/.well-known/openid-configuration", made.discovery)
    app.router.add_post("/token", made.token)
    async with TestServer(app) as server:
        made.url = str(server.make_url("")).rstrip("/")
        yield made


def kubeconfig(path: Path, provider: Provider, **config: str) -> Path:
    entry = {"name": "oidc", "config": {"idp-issuer-url": provider.url, "client-id": "id", **config}}
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"auth-provider": entry}}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


async def test_a_good_id_token_is_used_as_it_is(provider: Provider, tmp_path: Path) -> None:
    token = jwt(FAR, name="??>>~~")  # characters that the two alphabets of base64 write differently
    assert "-" in token or "_" in token
    found = auto_connection(kubeconfig=kubeconfig(tmp_path / "config", provider, **{"id-token": token}), environ={})
    assert (await found.credentials()).authorization == f"Bearer {token}"
    assert provider.forms == []


async def test_an_expired_id_token_is_renewed_and_the_new_tokens_are_stored(provider: Provider, tmp_path: Path) -> None:
    fresh = jwt(FAR)
    provider.tokens = {"id_token": fresh, "refresh_token": "r2"}
    path = kubeconfig(tmp_path / "config", provider, **{"id-token": jwt(1), "refresh-token": "r1"})
    found = auto_connection(kubeconfig=path, environ={})
    assert (await found.credentials()).authorization == f"Bearer {fresh}"
    assert provider.forms == [{"grant_type": "refresh_token", "refresh_token": "r1"}]
    assert provider.headers == [f"Basic {base64.b64encode(b'id:').decode()}"]
    stored = yaml.safe_load(path.read_text())["users"][0]["user"]["auth-provider"]["config"]
    assert (stored["id-token"], stored["refresh-token"]) == (fresh, "r2")


async def test_a_provider_that_refuses_is_named(provider: Provider, tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", provider, **{"refresh-token": "r1"})
    with pytest.raises(KubeconfigError, match=rf"{provider.url} gave no new id token: 400.*sign in again"):
        await auto_connection(kubeconfig=path, environ={}).credentials()


async def test_without_a_refresh_token_a_person_must_sign_in_again(provider: Provider, tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", provider, **{"id-token": jwt(1)})
    with pytest.raises(KubeconfigError, match="is expired, and there is no refresh-token: sign in again"):
        await auto_connection(kubeconfig=path, environ={}).credentials()


@pytest.mark.parametrize("token", ["", "no jwt", "a.b.c", "a.bm8.c"])
def test_a_token_without_an_expiry_counts_as_expired(token: str) -> None:
    assert expired(token)
