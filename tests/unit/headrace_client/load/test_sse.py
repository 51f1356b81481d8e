import pytest

from headrace_client.load.sse import Completion, SseDecoder, StreamError


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_payloads_survive_any_cut(size: int) -> None:
    stream = 'data: {"a": "é"}\r\n\r\n: ping\n\ndata: one\ndata: two\n\nevent: x\n\ndata: [DONE]\n\n'.encode()
    decoder = SseDecoder()
    found = [item for at in range(0, len(stream), size) for item in decoder.feed(stream[at : at + size])]
    assert found == ['{"a": "é"}', "one\ntwo", "[DONE]"]


def test_a_chunk_without_text_does_not_count_as_the_first_token() -> None:
    seen = Completion()
    seen.feed('{"choices": [{"text": ""}]}', 0.005)
    seen.feed('{"choices": [{"text": "hello"}]}', 0.4)
    assert seen.times == [0.4]


def test_tokens_come_from_usage_where_the_server_sends_it() -> None:
    seen = Completion()
    seen.feed('{"choices": [{"text": "five tokens in one", "finish_reason": "length"}]}', 1.0)
    assert seen.output_tokens == 1
    seen.feed('{"choices": [], "usage": {"completion_tokens": 5}}', 1.1)
    assert seen.output_tokens == 5
    assert seen.times == [1.0]


def test_the_end_counts_as_the_first_token_of_an_answer_without_text() -> None:
    seen = Completion()
    seen.feed('{"choices": [{"text": "", "finish_reason": "length"}]}', 2.0)
    assert seen.times == [2.0]


@pytest.mark.parametrize("payload", ["{", "[1]", '{"error": {"message": "boom"}}'])
def test_a_payload_that_is_not_a_chunk_is_an_error(payload: str) -> None:
    with pytest.raises(StreamError):
        Completion().feed(payload, 0.0)
