"""The host's own starter distribution with this package as the provider of its `responses` API."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.openai_client import Json, create, function, stored, stream
from tests.support.stack import Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess, reply, text, tool_call
from tests.support.variants import variant
from tests.support.waiting import wait_until
from tests.support.wire import Wire, error_of

pytestmark = [pytest.mark.live, pytest.mark.both_hosts, pytest.mark.extended]

NAME = "m"
MODEL = f"vllm/{NAME}"
CALL = tool_call(0, "call_a", "weather", '{"city":', ' "Oslo"}')
STATE = "${env.SQLITE_STORE_DIR:=~/.llama-stack-responses}"
# These would load torch for embeddings and for ranking search results: gigabytes that responses do not need.
TORCH = {
    "llama_stack": (["inline::transformers"], ["default_reranker_model"]),
    "ogx": (["inline::sentence-transformers"], ["default_embedding_model", "default_reranker_model"]),
}


def package(name: str) -> Path:
    """Return the folder of an installed package without importing it."""
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def with_our_responses(config: Json) -> None:
    """Set the provider of the `responses` API."""
    config["providers"]["responses"] = [
        {
            "provider_id": "responses",
            "provider_type": "inline::kv",
            "module": "llama_stack_responses",
            "config": {"store": {"type": "sqlite", "path": f"{STATE}/responses.db"}},
        }
    ]


def without_torch(config: Json, host: Host) -> None:
    """Remove the providers and settings that need torch. They do not depend on the responses provider."""
    kinds, settings = TORCH[host]
    providers = config["providers"]["inference"]
    config["providers"]["inference"] = [each for each in providers if each["provider_type"] not in kinds]
    for setting in settings:
        del config["vector_stores"][setting]


@pytest.fixture(scope="module")
def distribution(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveStack]:
    """The host's installed starter distribution with that provider."""

    def change(config: Json) -> None:
        with_our_responses(config)
        without_torch(config, host)

    folder = tmp_path_factory.mktemp("distribution")
    site = package(host)
    env = {
        **stack_env,
        "HOME": str(folder),
        "SQLITE_STORE_DIR": str(folder / "state"),
        "FILES_STORAGE_DIR": str(folder / "state" / "files"),
        "VLLM_URL": upstream_process.client.base_url,
        # The host counts tokens of files with vocabularies that tiktoken would download; llama_index contains them.
        "TIKTOKEN_CACHE_DIR": str(site.parent / "llama_index" / "core" / "_static" / "tiktoken_cache"),
    }
    config = variant(site / "distributions" / "starter" / "config.yaml", folder / "config.yaml", change)
    live = LiveStack(config, env, folder / "state", host=host)
    live.start()
    yield live
    live.kill()  # OGX's pool of file processors takes seconds to stop


def test_host_distribution_streams_stores_and_chains_responses(distribution: LiveStack, upstream: Upstream) -> None:
    tools = [function("weather", "city")]
    upstream.script(NAME, [reply(text("Hello", ", Ada")), reply(CALL), reply(text("Sun", "ny."))])
    with distribution.client() as client:
        first = stream(client, model=MODEL, input="I am Ada.")
        assert first.texts("output_text") == ["Hello", ", Ada"]
        second = create(client, model=MODEL, input="Weather?", tools=tools, previous_response_id=first.response["id"])
        [call] = second["output"]
        assert (call["name"], call["arguments"]) == ("weather", '{"city": "Oslo"}')
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "no clouds"}
        third = stream(client, model=MODEL, input=[output], tools=tools, previous_response_id=second["id"]).response
        for response in (first.response, second, third):
            assert stored(client, response["id"]) == response
    sent = upstream.requests(NAME)[-1].body["messages"]
    assert [(message["role"], message.get("content")) for message in sent] == [
        ("user", "I am Ada."),
        ("assistant", "Hello, Ada"),
        ("user", "Weather?"),
        ("assistant", None),
        ("tool", "no clouds"),
    ]


def test_host_distribution_keeps_the_other_routes_of_the_host(distribution: LiveStack, upstream: Upstream) -> None:
    with Wire(distribution) as wire:
        refused = wire.post({"model": "vllm/echo", "input": "Hi", "temperature": 3})
        assert error_of(refused, 400)["param"] == "temperature"
    with distribution.client() as client:
        chat = client.chat.completions.create(model="vllm/echo", messages=[{"role": "user", "content": "Hi"}])
        assert chat.choices[0].message.content == "Hi"
        # The host's own provider refreshes its list of models repeatedly, and has none for a moment.
        wait_until(lambda: "vllm/echo" in [each.id for each in client.models.list()])
    assert (distribution.state_dir / "responses.db").exists()
