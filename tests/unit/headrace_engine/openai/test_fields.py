"""The advice in the error for a body that is not JSON."""

import pytest

from headrace_engine.http.errors import ApiError
from headrace_engine.openai.fields import read_object

UNICODE = "is it a lone surrogate"
NUMBERS = "are not JSON numbers"


@pytest.mark.parametrize(
    ("raw", "advice"),
    [
        (b'{"a": "\\ud800"}', UNICODE),
        (b'{"a": "\\uDC00"}', UNICODE),
        (b'{"a": "\\ud83d\\u0041"}', UNICODE),
        (b'{"a": "\\ude00\\ud83d"}', UNICODE),
        (b'{"a": "\xed\xa0\x80"}', UNICODE),
        (b'{"a": "\xff"}', UNICODE),
        (b'{"a": NaN}', NUMBERS),
        (b'{"a": -Infinity}', NUMBERS),
        (b'{"a": "\\ud83d\\ude00"', None),
        (b'{"a": "\xf0\x9f\x98\x80"', None),
        (b"", None),
        (b"[1]", None),
    ],
)
def test_the_error_says_what_is_most_likely_wrong(raw: bytes, advice: str | None) -> None:
    with pytest.raises(ApiError) as error:
        read_object(raw)
    assert error.value.body["error"]["code"] == "invalid_json"
    message = error.value.body["error"]["message"]
    assert [words for words in (UNICODE, NUMBERS) if words in message] == ([advice] if advice else [])
