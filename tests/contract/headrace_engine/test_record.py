"""`--record`: a recording of the real engine's scheduler replays byte for byte."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headrace_core.knobs.resolve import resolve
from headrace_core.trace.record import RecordingScheduler
from headrace_core.trace.replay import replay
from headrace_engine.engine import assemble
from headrace_engine.errors import SettingsError
from headrace_engine.loop.recording import open_recording

Serve = Any


async def test_a_recording_of_the_engine_replays(serve: Serve, tmp_path: Path) -> None:
    server = await serve(record=tmp_path / "calls.jsonl", max_num_seqs=3, prefill_chunk_size=8)
    answers = await asyncio.gather(
        *(server.complete(prompt="hello " * (at + 1), max_tokens=5 + at, n=2, ignore_eos=True) for at in range(4))
    )
    assert [answer.status_code for answer in answers] == [200] * 4
    await server.admin.patch(
        "/admin/config", json={"knobs": {"decode_ratio": 0.5}}, headers={"Authorization": "Bearer s3cret"}
    )
    assert (await server.complete(prompt="hello hello")).status_code == 200
    with (tmp_path / "calls.jsonl").open() as lines:
        report = replay(lines)
    assert report.problem is None, report.problem
    assert report.steps > 10
    assert (tmp_path / "calls.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_full_disk_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write = open_recording(tmp_path / "calls.jsonl")
    (tmp_path / "calls.jsonl").unlink()
    (tmp_path / "calls.jsonl").mkdir()  # a folder in the file's place: stands for a full disk
    scheduler = RecordingScheduler(resolve({}), num_blocks=9, max_model_len=32, write=write)
    assert scheduler.plan(1.0) is None
    (line,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "the recording ends here" in line.getMessage()
    assert line.file == str(tmp_path / "calls.jsonl")


def test_no_recording_is_overwritten(tmp_path: Path) -> None:
    for line in ("one\n", "two\n"):
        open_recording(tmp_path / "calls.jsonl")(line)
    assert [(tmp_path / name).read_text() for name in ("calls.jsonl", "calls-1.jsonl")] == ["one\n", "two\n"]


def test_a_path_that_cannot_be_written_is_named(loaded: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"--record .*file/calls: cannot write there"):
        assemble(*loaded, resolve({}), served_name="tiny", record=tmp_path / "file" / "calls")
