"""API keys: which calls get in, what logs may show, and a Secret that rotates while the server runs."""

import hashlib
import logging
from pathlib import Path
from typing import Any

import openai
import pytest

from headrace_engine.errors import SettingsError
from headrace_engine.http.auth import OPEN_PATHS, ApiKeys, keys_file, read_keys

Serve = Any


def keyed(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return keyed(tmp_path / "keys", "# the team's\nalice:sk-alice-1\n\n  bob:sk-bob-1  \nsk-nobody:in-particular!\n")


async def test_every_key_of_the_file_gets_in(serve: Serve, file: Path) -> None:
    server = await serve(http={"keys": ApiKeys(file)})
    for key in ("sk-alice-1", "sk-bob-1"):
        assert (await server.http.get("/v1/models", headers=bearer(key))).status_code == 200
    assert (await server.http.get("/v1/models", headers={"Authorization": "bearer sk-bob-1"})).status_code == 200


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer sk-alice", "Bearer sk-alice-11", "sk-alice-1", "Basic sk-alice-1",
     "Bearer alice:sk-alice-1", "Bearer # the team's"],
)  # fmt: skip
async def test_every_other_key_gets_a_401_in_openais_form(serve: Serve, file: Path, header: str | None) -> None:
    server = await serve(http={"keys": ApiKeys(file)})
    answer = await server.http.post(
        "/v1/completions", json={"prompt": "x"}, headers={} if header is None else {"Authorization": header}
    )
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == "invalid_api_key"
    assert server.metric("headrace:requests_total") == 0


async def test_bytes_that_are_not_text_are_a_401(serve: Serve, file: Path) -> None:
    server = await serve(http={"keys": ApiKeys(file)})
    answer = await server.http.get("/v1/models", headers={"Authorization": b"Bearer \xff\xfe"})
    assert answer.status_code == 401


async def test_every_route_but_the_open_ones_needs_a_key(serve: Serve, file: Path) -> None:
    server = await serve(http={"keys": ApiKeys(file)})
    for path in sorted(OPEN_PATHS):
        assert (await server.http.get(path)).status_code == 200, path
    closed = ["/v1/models", "/v1/models/tiny", "/v1/completions", "/tokenize", "/detokenize", "/v1%2Fmodels",
              "//v1/models", "/V1/models", "/health/../v1/models", "/health/live/", "/no/such/route"]  # fmt: skip
    for path in closed:
        assert (await server.http.get(path)).status_code == 401, path


async def test_the_official_client_sees_an_authentication_error(serve: Serve, file: Path) -> None:
    server = await serve(http={"keys": ApiKeys(file)})
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError, match="not valid here"):
            await client.completions.create(model="tiny", prompt="x")
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="sk-bob-1", max_retries=0) as client:
        assert [model.id async for model in client.models.list()] == ["tiny"]


async def test_a_secret_that_rotates_is_read_again(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As the kubelet does it, by swapping a symbolic link to a folder."""
    for name, text in (("one", "a:old-key"), ("two", "a:old-key\na:new-key"), ("three", "a:new-key")):
        (tmp_path / name).mkdir()
        keyed(tmp_path / name / "keys", text)
    link = tmp_path / "current"
    link.symlink_to("one")
    server = await serve(http={"keys": ApiKeys(link / "keys")})

    async def admitted() -> list[bool]:
        answers = [await server.http.get("/v1/models", headers=bearer(f"{age}-key")) for age in ("old", "new")]
        return [answer.status_code == 200 for answer in answers]

    assert await admitted() == [True, False]
    for name, expected in (("two", [True, True]), ("three", [False, True])):
        (tmp_path / "next").symlink_to(name)
        (tmp_path / "next").rename(link)
        assert await admitted() == expected
    link.unlink()
    assert await admitted() == [False, True], "a file that is gone for a moment changes nothing"
    caplog.clear()
    link.symlink_to("two")
    keyed(tmp_path / "two" / "keys", "\n")
    assert await admitted() == [False, True], "nor does a wrong one"
    assert await admitted() == [False, True]
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 1, "said once, not with every call"
    assert "holds no key" in errors[0].getMessage()


async def test_logs_name_the_key_by_label_or_short_hash(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    keys = ApiKeys(keyed(tmp_path / "keys", "alice:sk-alice-1\nsk-secret-without-name\n"))
    server = await serve(http={"keys": keys})
    for key in ("sk-alice-1", "sk-secret-without-name", "sk-wrong"):
        await server.http.get("/v1/models", headers=bearer(key))
    lines = [record for record in caplog.records if record.name == "headrace_engine.access"]
    digest = hashlib.sha256(b"sk-secret-without-name").hexdigest()
    assert [vars(line)["key"] for line in lines] == ["alice", f"sha256:{digest[:8]}", None]
    everything = "\n".join(str(vars(record)) for record in caplog.records if record.name.startswith("headrace"))
    assert "sk-" not in everything


def test_the_file_is_named_by_flag_or_environment(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert keys_file(None) is None
    monkeypatch.setenv("HEADRACE_API_KEYS_FILE", str(file))
    from_environment = keys_file(None)
    assert from_environment is not None
    assert from_environment.label_of("sk-bob-1") == "bob"
    other = keys_file(keyed(tmp_path / "other", "x:y"))
    assert other is not None
    assert other.label_of("sk-bob-1") is None, "the flag wins"
    monkeypatch.setenv("HEADRACE_API_KEYS_FILE", str(tmp_path / "none"))
    with pytest.raises(SettingsError, match=r"HEADRACE_API_KEYS_FILE .*none: cannot be read"):
        keys_file(None)


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "holds no key"), ("# only a comment\n\n", "holds no key"),
     ("a:one\nb:\n", "line 2: has no key after its name"), ("a:one\nb:one", "line 2: the key is there twice"),
     ("a key with spaces", "line 1: holds a character"),
     ("a:sch\u00fcssel", "line 1: holds a character"), ("ok\n\x00\x01", "line 2: holds a character"),
     ("x" * 2_000_000, "is it the right file")],
)  # fmt: skip
def test_a_wrong_file_is_named_with_its_line_and_no_key(tmp_path: Path, text: str, words: str) -> None:
    path = keyed(tmp_path / "keys", text)
    with pytest.raises(SettingsError, match=words) as refused:
        read_keys(path)
    assert str(path) in str(refused.value)
    assert "--api-key-file" in str(refused.value)
    assert "one" not in str(refused.value).replace("one of its own", "").replace("add one key per line", "")


def test_a_missing_file_or_a_folder_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(SettingsError, match="cannot be read"):
            ApiKeys(path)


def test_no_other_key_is_accepted(tmp_path: Path) -> None:
    """Not even among 3,000 keys, some of whose hashes begin like that of the valid key."""
    keys = ApiKeys(keyed(tmp_path / "keys", "a:sk-1"))
    assert [key for key in (f"sk-{number}" for number in range(3000)) if keys.label_of(key)] == ["sk-1"]


def test_a_key_may_hold_colons_behind_its_name(tmp_path: Path) -> None:
    keys = ApiKeys(keyed(tmp_path / "keys", "name:a:b:c\n_x:y\n"))
    assert keys.label_of("a:b:c") == "name"
    label = keys.label_of("_x:y")
    assert label is not None
    assert label.startswith("sha256:"), "a prefix that is not a valid name is part of the key"
