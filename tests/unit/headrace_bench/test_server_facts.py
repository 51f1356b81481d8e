"""Facts that a server reports about itself."""

from headrace_bench.server_facts import differing, facts_of, server_facts
from headrace_client.load.client import load_session

INFO = """headrace:engine_info{model_name="m",version="0.1.0",device="cpu",dtype="float32",pretend_gpu="false"} 1
headrace:config_info{model_name="m",knob="enable_chunked_prefill",value="true"} 1
headrace:config_info{model_name="m",knob="prefill_chunk_size",value="64"} 1
headrace:config_info{model_name="m",knob="prefill_chunk_size",value="32"} 0
"""


def test_an_engines_facts_are_the_labels_of_its_info_metrics() -> None:
    facts = facts_of(INFO)
    assert facts["engine"]["device"] == "cpu"
    assert facts["config"] == {"enable_chunked_prefill": "true", "prefill_chunk_size": "64"}
    wanted = {"enable_chunked_prefill": True, "prefill_chunk_size": 64, "batching": "static"}
    assert differing(facts["config"], wanted) == []
    assert differing(facts["config"], {"enable_chunked_prefill": False, "prefill_chunk_size": None}) == [
        "enable_chunked_prefill is true, not false", "prefill_chunk_size is 64, not ",
    ]  # fmt: skip


async def test_a_server_without_facts_is_not_an_error(server) -> None:
    async with load_session() as session:
        assert await server_facts(session, server.url) == {}
        assert await server_facts(session, "http://127.0.0.1:1") == {}
