"""The engine's requests made from a body, and the parts that depend on the model."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_engine.http.errors import ApiError
from headrace_engine.model.generation import OPENAIS
from headrace_engine.openai.backend import Backend
from headrace_engine.openai.generation_request import GenerationRequest, live_requests, response_spec
from headrace_engine.openai.prompts import Prompt
from headrace_engine.openai.schema import ChatBody, CompletionBody
from headrace_engine.openai.streaming import Channel

EOS = 256
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def engine(tokenizer: Any, *, template: str | None = None) -> Any:
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = template
    model = SimpleNamespace(tokenizer=tokenizer, vocab_size=257, eos_token_ids=frozenset({EOS}))
    return SimpleNamespace(model=model, max_model_len=100, config=SimpleNamespace(seed=0), sampling=OPENAIS)


def wanted(kind: type[Any] = CompletionBody, *, prompts: int = 1, **body: Any) -> GenerationRequest:
    required = {"prompt": "x"} if kind is CompletionBody else {"messages": [{"role": "user", "content": "x"}]}
    return GenerationRequest(
        call_id="cmpl-7", model="m", body=kind.model_validate(required | body), prompts=(Prompt((1, 2)),) * prompts,
        budgets=(9,) * prompts, arrival=5.0, seed="s",
    )  # fmt: skip


def submit(tokenizer: Any, request: GenerationRequest) -> list[Any]:
    return live_requests(request, engine(tokenizer), Channel(), hides_special=True)


def test_samples_are_forks_of_the_first_of_their_prompt(tokenizer: Any) -> None:
    made = submit(tokenizer, wanted(prompts=2, n=3))
    assert [item.request.request_id for item in made] == [f"cmpl-7-{at}" for at in range(6)]
    first = [None, "cmpl-7-0", "cmpl-7-0", None, "cmpl-7-3", "cmpl-7-3"]
    assert [item.request.fork_of for item in made] == first
    assert [item.state.params.seed for item in made] == [f"s-{at}" for at in range(6)]


@pytest.mark.parametrize(
    ("body", "scores"),
    [
        ({"prompt_logprobs": 3}, 3),
        ({"echo": True, "logprobs": 2}, 2),
        ({"echo": True, "logprobs": 2, "prompt_logprobs": 5}, 5),
        ({"logprobs": 2}, None),
        ({"echo": True}, None),
    ],
)
def test_a_prompt_is_scored_once_and_then_not_read_from_the_cache(
    tokenizer: Any, body: dict[str, Any], scores: int | None
) -> None:
    first, fork = submit(tokenizer, wanted(n=2, **body))
    assert first.state.params.prompt_logprobs == scores
    assert first.request.reads_cache is (scores is None)
    assert (fork.state.params.prompt_logprobs, fork.request.reads_cache) == (None, True)


def test_every_parameter_arrives(tokenizer: Any) -> None:
    (made,) = submit(
        tokenizer,
        wanted(
            temperature=0.5, top_p=0.9, top_k=-1, min_p=0.1, repetition_penalty=1.5, presence_penalty=1,
            frequency_penalty=-1, logit_bias={"9": 1, "5": 2}, min_tokens=2, stop_token_ids=[7], logprobs=4, priority=3,
            cache_salt="salt",
        ),
    )  # fmt: skip
    params, request = made.state.params, made.request
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 0, 0.1)
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.5, 1.0, -1.0)
    assert params.logit_bias == ((5, 2.0), (9, 1.0))
    assert (params.min_tokens, params.logprobs, params.prompt_len) == (2, 4, 2)
    assert params.stop_token_ids == request.stop_token_ids == {7, EOS}
    assert (request.priority, request.cache_salt, request.max_tokens, request.arrival) == (3, "salt", 9, 5.0)
    (plain,) = submit(tokenizer, wanted())
    assert (plain.state.params.temperature, plain.state.params.top_p) == (1.0, 1.0), "OpenAI's defaults"
    assert plain.request.stop_token_ids == {EOS}
    (ignoring,) = submit(tokenizer, wanted(ignore_eos=True))
    assert ignoring.request.stop_token_ids == ignoring.state.params.stop_token_ids == frozenset()


def test_scoring_alone_asks_for_one_token_without_scores(tokenizer: Any) -> None:
    request = wanted(echo=True, logprobs=1, max_tokens=0)
    object.__setattr__(request, "budgets", (0,))
    (made,) = submit(tokenizer, request)
    assert (made.request.max_tokens, made.state.params.logprobs, made.state.params.prompt_logprobs) == (1, None, 1)
    assert not response_spec(request, lambda: None).generates  # type: ignore[arg-type, return-value]


def test_tokens_are_spelled_only_where_asked_for(tokenizer: Any) -> None:
    def texts() -> Any:
        raise AssertionError

    assert response_spec(wanted(), texts).texts is None
    assert response_spec(wanted(ChatBody, top_logprobs=0), texts).logprobs is None
    for request in (wanted(logprobs=0), wanted(prompt_logprobs=0), wanted(ChatBody, logprobs=True)):
        with pytest.raises(AssertionError):
            response_spec(request, texts)


def test_more_min_tokens_than_can_come_are_a_400(tokenizer: Any) -> None:
    with pytest.raises(ApiError, match="min_tokens 10 exceeds the 9 tokens"):
        submit(tokenizer, wanted(min_tokens=10))


def test_a_special_token_that_announces_a_call_stays_in_the_text(tokenizer: Any) -> None:
    template = "{{ tools }} <tool_call>"
    body = ChatBody.model_validate({"messages": [{"role": "user", "content": "x"}], "tools": TOOLS})
    plain = Backend(engine(tokenizer, template=template))
    assert plain.hides_special(body)
    marked = engine(tokenizer, template=template)
    marked.model.tokenizer.add_special_tokens({"additional_special_tokens": ["<tool_call>"]})
    assert not Backend(marked).hides_special(body)
    none = body.model_copy(update={"tool_choice": "none"})
    assert Backend(marked).hides_special(none)
    assert Backend(marked, tool_call_parser="llama3_json").hides_special(body)
    shown = body.model_copy(update={"skip_special_tokens": False})
    assert not plain.hides_special(shown)
