"""Tool calls in generated text: the same calls and the same text, however the text is split into pieces."""

import json
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_engine.errors import SettingsError
from headrace_engine.openai.tool_json import CallArguments, CallName, PlainText, ToolEvent
from headrace_engine.openai.tools import ToolFormat, ToolParser, forced_parser, format_of, parser_for
from headrace_engine.settings import TOOL_CALL_PARSERS, one_of

Read = tuple[str, list[tuple[str, str]]]


def read(parser: ToolParser, pieces: Iterable[str]) -> Read:
    """(text, [(name, arguments)]); an event must fit those before it."""
    events: list[ToolEvent] = [event for piece in pieces for event in parser.push(piece)]
    text, calls = "", list[list[str]]()
    for event in [*events, *parser.finish()]:
        match event:
            case PlainText(text=more):
                text += more
            case CallName(index=index, name=name):
                assert index == len(calls)
                calls.append([name, ""])
            case CallArguments(index=index, text=more):
                assert more
                calls[index][1] += more
    return text, [(name, arguments) for name, arguments in calls]


def hermes(text: str) -> Read:
    return read(parser_for(ToolFormat.HERMES), [text])


CALL = '<tool_call>\n{"name": "f", "arguments": {"a": [1, "}</tool_call>\\""]}}\n</tool_call>'
ARGUMENTS = '{"a": [1, "}</tool_call>\\""]}'
HERMES = [
    ("plain text\n", ("plain text\n", [])),
    ("", ("", [])),
    (CALL, ("", [("f", ARGUMENTS)])),
    (f"Let me see.\n\n{CALL}\n{CALL}\n", ("Let me see.", [("f", ARGUMENTS)] * 2)),
    (f"{CALL}\nDone.", ("Done.", [("f", ARGUMENTS)])),
    ("a < b <tool_cal l> c", ("a < b <tool_cal l> c", [])),
    ("a <tool_call", ("a <tool_call", [])),
    ('<tool_call>{"arguments": {"x": 1}, "name": "late"}</tool_call>', ("", [("late", '{"x": 1}')])),
    ('<tool_call>{"name": "none"}</tool_call>', ("", [("none", "{}")])),
    ('<tool_call>{"name": "null", "arguments": null}</tool_call>', ("", [("null", "{}")])),
    ('<tool_call>{"name": "s", "arguments": "{\\"x\\": 1}"}</tool_call>', ("", [("s", '{"x": 1}')])),
    ('<tool_call>{"name": "n", "arguments": 5 }</tool_call>', ("", [("n", "5")])),
    ('<tool_call>{"id": {"name": "no"}, "name": "yes", "arguments": {}}</tool_call>', ("", [("yes", "{}")])),
    ('<tool_call>{"name": "f", "arguments": {}, "parameters": {"x": 1}, "name": "g"}</tool_call>', ("", [("f", "{}")])),
    # Cut off by max_tokens.
    ('x <tool_call>\n{"na', ('x <tool_call>\n{"na', [])),
    ('<tool_call>{"name": "f", "arguments": {"a": "b', ("", [("f", '{"a": "b')])),
    ('<tool_call>{"name": "f", "arguments": {}}</tool', ("", [("f", "{}")])),
    # Not calls, or broken ones.
    ("<tool_call>f(1)</tool_call>", ("<tool_call>f(1)</tool_call>", [])),
    ('<tool_call>{"arguments": {}}</tool_call>', ('<tool_call>{"arguments": {}}</tool_call>', [])),
    ('<tool_call>{"name": 5}</tool_call>', ('<tool_call>{"name": 5}</tool_call>', [])),
    *((text, (text, [])) for text in (f'<tool_call>{{"name": {odd}}}</tool_call>' for odd in ("", ",", ":", "]"))),
    ('<tool_call>{"name": "\\ud800"}</tool_call>', ('<tool_call>{"name": "\\ud800"}</tool_call>', [])),
    ('<tool_call>{"name": "f", "arguments": {} oops}</tool_call> on', ("on", [("f", "{}")])),
    ('<tool_call>{"name": "f", "arguments": {}} forgot <b', ("forgot <b", [("f", "{}")])),
    (f'<tool_call>{{"name": "g", "arguments": {{}} {CALL}', ("", [("g", "{}"), ("f", ARGUMENTS)])),
    (f'<tool_call>{{"name": "g", "arguments": {{}}}}{CALL}', ("", [("g", "{}"), ("f", ARGUMENTS)])),
]


@pytest.mark.parametrize(("text", "expected"), HERMES)
def test_hermes_calls_whole_and_in_every_split(text: str, expected: Read) -> None:
    assert hermes(text) == expected
    assert read(parser_for(ToolFormat.HERMES), text) == expected, "character by character"
    for at in range(len(text)):
        assert read(parser_for(ToolFormat.HERMES), [text[:at], text[at:]]) == expected, at


LLAMA = [
    ('{"name": "f", "parameters": {"x": 1}}', ("", [("f", '{"x": 1}')])),
    ('<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g"}', ("", [("f", "{}"), ("g", "{}")])),
    ("\n no call {", ("\n no call {", [])),
    ('{"answer": 42}', ('{"answer": 42}', [])),
    ('{"name": "f", "parameters": {}}; and so on', ("and so on", [("f", "{}")])),
    ('{"name": "f"', ("", [("f", "")])),
    ('{"nam', ('{"nam', [])),
    ("<|python", ("<|python", [])),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), LLAMA)
def test_llama_calls_whole_and_in_every_split(text: str, expected: Read) -> None:
    for at in range(len(text) + 1):
        assert read(parser_for(ToolFormat.LLAMA3_JSON), [text[:at], text[at:]]) == expected, at
    assert read(parser_for(ToolFormat.LLAMA3_JSON), text) == expected


def test_forced_calls() -> None:
    text = '[{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]'
    for pieces in ([text], list(text)):
        assert read(forced_parser(None), pieces) == ("", [("f", '{"x": 1}'), ("g", "{}")])
        assert read(forced_parser("f"), ["\n", *pieces]) == ("", [("f", text)])
    assert read(forced_parser("f"), []) == ("", [("f", "")])
    assert read(forced_parser(None), ['[{"name": "f", "argum']) == ("", [("f", "")])


def test_the_name_comes_as_soon_as_it_is_whole_and_arguments_as_they_grow() -> None:
    parser = parser_for(ToolFormat.HERMES)
    assert parser.push('<tool_call>{"name": "f') == []
    assert parser.push('"') == [CallName(0, "f")]
    assert parser.push(', "arguments": {"a"') == [CallArguments(0, '{"a"')]
    assert parser.push(": 1}") == [CallArguments(0, ": 1}")]
    assert parser.push("}</tool_call>") == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8"), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
CALLS = st.lists(
    st.tuples(
        st.text(st.characters(codec="utf-8"), min_size=1, max_size=6),
        st.dictionaries(st.text(max_size=5), JSON, max_size=3),
    ),
    max_size=4,
)


@given(CALLS, st.integers(1, 9), st.text(st.characters(codec="utf-8", exclude_characters="<"), max_size=9))
def test_any_calls_come_back(calls: list[tuple[str, dict[str, object]]], size: int, said: str) -> None:
    made: list[tuple[Callable[[], ToolParser], str, str]] = [
        (lambda: parser_for(ToolFormat.HERMES), "arguments", "\n".join(["<tool_call>{}</tool_call>"] * len(calls))),
        (lambda: parser_for(ToolFormat.LLAMA3_JSON), "parameters", ";".join(["{}"] * len(calls))),
    ]
    for make, key, layout in made:
        objects = [json.dumps({"name": name, key: arguments}) for name, arguments in calls]
        before = said if make().__class__.__name__ == "HermesParser" else ""
        text = before + layout.format(*objects)
        _, found = read(make(), [text[at : at + size] for at in range(0, len(text), size)])
        assert [(name, json.loads(arguments)) for name, arguments in found] == calls
        assert read(make(), [text])[1] == found


@given(st.text(alphabet='<tool_ca>/{}"name:arguments,\\ \n', max_size=60), st.integers(1, 5))
def test_no_text_is_too_odd_and_pieces_never_matter(text: str, size: int) -> None:
    text = text.replace("t", "<tool_call>").replace("n", '"name"').replace("g", '{"name": "f", "arguments": ')
    for kind in (ToolFormat.HERMES, ToolFormat.LLAMA3_JSON):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert read(parser_for(kind), pieces) == read(parser_for(kind), [text])
    assert read(forced_parser(None), list(text)) == read(forced_parser(None), [text])


def test_the_flag_offers_every_format() -> None:
    assert ("auto", *ToolFormat) == TOOL_CALL_PARSERS
    assert one_of(TOOL_CALL_PARSERS, "--tool-call-parser", "hermes") == "hermes"
    with pytest.raises(SettingsError, match="--tool-call-parser wombat: must be auto, hermes"):
        one_of(TOOL_CALL_PARSERS, "--tool-call-parser", "wombat")


def test_the_format_is_read_from_the_template() -> None:
    assert format_of("... within <tool_call></tool_call> XML tags") is ToolFormat.HERMES
    assert format_of("<tool_call>\n<function=name>") is ToolFormat.NONE
    assert format_of('{"name": function name, "parameters": dictionary of argument') is ToolFormat.LLAMA3_JSON
    assert format_of("{{ messages }}") is ToolFormat.NONE
