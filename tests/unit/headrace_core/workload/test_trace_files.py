"""Traces: every form that is taken, and a line number for everything else."""

import json

import pytest

from headrace_bench.serve.traces import read_trace
from headrace_core.errors import HeadraceError
from headrace_core.workload.trace_files import parse_trace


def parse(*lines: object, **more: object):
    return parse_trace([line if isinstance(line, str) else json.dumps(line) for line in lines], name="t", **more)


def test_lengths_prompts_and_messages_are_taken() -> None:
    messages = [{"role": "user", "content": "one two three"}]
    plan = parse(
        {"timestamp": 100, "prompt_tokens": 7, "output_tokens": 3},
        "",
        {"at": 101.5, "prompt": "some words here", "output_tokens": 4, "ignored": True},
        {"at": 102, "messages": messages, "output_length": 5},
    )
    assert [item.at for item in plan] == [0.0, 1.5, 2.0]
    assert [item.output_tokens for item in plan] == [3, 4, 5]
    assert plan[0].prompt_tokens == 7
    assert plan[0].content is None
    assert plan[1].content == "some words here"
    assert plan[1].prompt_tokens == 4
    assert plan[2].content == tuple(messages)


def test_time_has_a_unit_and_a_scale() -> None:
    lines = [{"timestamp": at, "input_length": 5, "output_length": 1} for at in (3000, 1000, 2000)]
    assert [item.at for item in parse(*lines, unit="ms", scale=0.5)] == [0.0, 0.5, 1.0]


def test_iso_times_are_seconds_whatever_the_unit() -> None:
    lines = [
        {"timestamp": f"2023-11-16T18:17:0{at}.500000+00:00", "prompt_tokens": 5, "output_tokens": 1} for at in (3, 5)
    ]
    assert [item.at for item in parse(*lines, unit="ms")] == [0.0, 2.0]


def test_a_limit_cuts_the_trace() -> None:
    assert len(parse(*[{"at": at, "prompt_tokens": 1, "output_tokens": 1} for at in range(9)], limit=4)) == 4


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[1]", "must be a JSON object"),
        ({"prompt_tokens": 1, "output_tokens": 1}, "has no time"),
        ({"at": "soon", "prompt_tokens": 1, "output_tokens": 1}, "at: must be a number or an ISO"),
        ({"at": True, "prompt_tokens": 1, "output_tokens": 1}, "at: must be a number"),
        ('{"at": NaN, "prompt_tokens": 1, "output_tokens": 1}', "at: must be a number"),
        ('{"at": 1' + "0" * 400 + ', "prompt_tokens": 1, "output_tokens": 1}', "at: must be a number"),
        ({"at": 1, "output_tokens": 1}, "has no prompt"),
        ({"at": 1, "prompt_tokens": 0, "output_tokens": 1}, "prompt_tokens: must be a whole number"),
        ({"at": 1, "prompt_tokens": 2.5, "output_tokens": 1}, "prompt_tokens: must be a whole number"),
        ({"at": 1, "prompt_tokens": 1}, "output_tokens: must be a whole number"),
        ({"at": 1, "prompt": "a", "messages": [{}], "output_tokens": 1}, "both prompt and messages"),
        ({"at": 1, "prompt": 5, "output_tokens": 1}, "prompt: must be text"),
        ({"at": 1, "messages": ["a"], "output_tokens": 1}, "messages: must be a list of objects"),
    ],
)
def test_a_bad_line_is_named_by_its_number(line: object, words: str) -> None:
    good = {"at": 1, "prompt_tokens": 1, "output_tokens": 1}
    with pytest.raises(HeadraceError, match="--trace t, line 3: ") as caught:
        parse(good, good, line)
    assert words in str(caught.value)


def test_an_empty_or_missing_file_says_so(tmp_path) -> None:
    (tmp_path / "empty").write_text("\n\n")
    with pytest.raises(HeadraceError, match="holds no request"):
        read_trace(tmp_path / "empty")
    with pytest.raises(HeadraceError, match="cannot be read: No such file"):
        read_trace(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(HeadraceError, match="is not UTF-8"):
        read_trace(tmp_path / "binary")
