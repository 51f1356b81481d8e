"""The launcher's parts that need no namespace: log format, exit codes, paths inside a root, what it may import."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import headrace_local
from headrace_local.runtime.inner import files, insideroot, lives
from headrace_local.runtime.inner.logs import MAX_LINE, LineSplitter, LogFile, timestamp

AT = 1_796_024_840_000_000_007


def test_timestamps_have_nine_digits():
    assert timestamp(AT) == "2026-11-30T07:47:20.000000007Z"


def test_lines_are_cut_at_line_breaks_however_they_arrive():
    splitter = LineSplitter("stdout")
    assert splitter.feed(b"he", AT) == b""
    stamp = timestamp(AT).encode()
    assert splitter.feed(b"llo\n\nwor", AT) == stamp + b" stdout F hello\n" + stamp + b" stdout F \n"
    assert splitter.finish(AT) == stamp + b" stdout P wor\n"
    assert splitter.finish(AT) == b""


def test_long_lines_are_written_in_parts():
    splitter = LineSplitter("stderr")
    text = b"x" * (2 * MAX_LINE + 5)
    lines = (splitter.feed(text, AT) + splitter.feed(b"\n", AT)).splitlines()
    assert [line.split(b" ", 3)[2] for line in lines] == [b"P", b"P", b"F"]
    assert b"".join(line.split(b" ", 3)[3] for line in lines) == text
    whole = LineSplitter("stderr").feed(text + b"\n", AT).splitlines()
    assert [line.split(b" ", 3)[2] for line in whole] == [b"P", b"P", b"F"]


def test_a_log_is_opened_again_at_its_path(tmp_path: Path):
    path = tmp_path / "pod" / "0.log"
    log = LogFile(str(path))
    log.write(b"one\n")
    path.rename(tmp_path / "old.log")
    log.write(b"two\n")
    log.reopen()
    log.write(b"three\n")
    assert (tmp_path / "old.log").read_text() == "one\ntwo\n"
    assert path.read_text() == "three\n"


@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("kill -TERM $$", 143), ("kill -KILL $$", 137), (":", 0)])
def test_exit_codes(script: str, code: int):
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", script], {})
    assert files.exit_code(os.waitpid(pid, 0)[1]) == code


def test_a_zombie_has_ended():
    assert lives.start_ticks(os.getpid()) > 0
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(ProcessLookupError):
        lives.start_ticks(pid)
    os.waitpid(pid, 0)
    with pytest.raises(ProcessLookupError):
        lives.start_ticks(pid)


def test_links_are_followed_inside_the_root(tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("/run")
    (tmp_path / "var/up").symlink_to("../../../../run")
    (tmp_path / "loop").symlink_to("/loop")
    root = str(tmp_path)
    assert insideroot.resolve(root, "/var/run/secrets/x") == "/run/secrets/x"
    assert insideroot.resolve(root, "/var/up/y") == "/run/y"
    assert insideroot.resolve(root, "/../../etc") == "/etc"
    with pytest.raises(OSError, match="too many"):
        insideroot.resolve(root, "/loop/x")


def test_mount_targets_are_made(tmp_path: Path):
    root = str(tmp_path)
    (tmp_path / "link").symlink_to("/real")
    assert insideroot.make_folder(root, "/link/a") == f"{root}/real/a"
    target = insideroot.make_file(root, "/etc/new/hosts")
    assert Path(target).read_bytes() == b""
    assert insideroot.make_file(root, "/etc/new/hosts") == target
    with pytest.raises(IsADirectoryError):
        insideroot.make_file(root, "/link/a")


def test_the_launcher_needs_no_site_packages():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "from headrace_local.runtime.inner import enter, supervisor;"
        "import json; print(json.dumps([m for m in ('pathlib', 'subprocess', 'grpc', 'yaml') if m in sys.modules]))"
    )
    root = str(Path(headrace_local.__file__).parent.parent)
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, root], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
