"""Sampling parameters that a call leaves out come from the model's generation_config.json."""

from typing import Any

from headrace_engine.model.generation import SuggestedSampling

Serve = Any
HOT = {"temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1}


async def text(server: Any, **body: Any) -> str:
    body = {"prompt": "hello", "max_tokens": 24, "seed": 5, "ignore_eos": True} | body
    answer = await server.http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


async def said(server: Any, **body: Any) -> Any:
    answer = await server.chat(**{"temperature": None, "max_tokens": 24, "seed": 5} | body)
    return answer.json()["choices"][0]["message"]


async def test_a_call_overrides_the_models_defaults_and_inherits_the_rest(serve: Serve) -> None:
    plain = await serve()
    # Strong values, as the model's logits are almost equal.
    values: dict[str, Any] = {"temperature": 0.1, "top_p": 0.5, "top_k": 7, "min_p": 0.8, "repetition_penalty": 50}
    for name, value in values.items():
        server = await serve(sampling=SuggestedSampling(**{name: value}))
        assert await text(server) == await text(plain, **{name: value}) != await text(plain), name
        assert await text(server, **HOT) == await text(plain), name
        assert await said(server) == await said(plain, **{name: value}) != await said(plain), name
    greedy = await serve(sampling=SuggestedSampling(temperature=0.0))
    assert await text(greedy, seed=1) == await text(greedy, seed=2) == await text(plain, temperature=0)
