"""The documentation has the exact errors of the hosts on their own routes."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.support.stack import REPOSITORY, STARTER, Host, LiveStack
from tests.support.upstream import UpstreamProcess
from tests.support.variants import add_vector_stores, open_this_machine, variant
from tests.support.wire import Json

pytestmark = [pytest.mark.live, pytest.mark.both_hosts]

ABSENT: Final = "Unknown request URL"
"""The beginning of what is answered without a route, which the documentation has."""
ABSENT_ADVICE: Final = (
    "Check the URL for typos, and whether this stack has the API: GET /openapi.json lists its routes."
)


@dataclass(frozen=True)
class RefusedRequest:
    """A request that the host refuses.

    Attributes:
        stack: the stack: "bare", without all but responses; "starter", without embedding models; or "vectors", without a
            default one.
        hosts: the hosts that answer like this.
    """

    stack: str
    method: str
    path: str
    status: int
    message: str
    body: Json = field(default_factory=dict)
    hosts: tuple[Host, ...] = ("llama_stack", "ogx")


NO_EMBEDDER: Final = (
    "This stack has no embedding model for a vector store: list one in 'embedding_models' of an inference provider, "
    "which the starter template takes from the variable EMBEDDING_MODELS, by its name in /v1/models of the model server."
)

REFUSED: Final = [
    RefusedRequest("bare", "GET", "/v1/files", 404, ABSENT),
    RefusedRequest("bare", "POST", "/v1/files", 404, ABSENT),
    RefusedRequest("bare", "GET", "/v1/vector_stores", 404, ABSENT),
    RefusedRequest("bare", "POST", "/v1/vector_stores", 404, ABSENT, {"name": "v"}),
    RefusedRequest("starter", "POST", "/v1/vector_stores", 400, NO_EMBEDDER, {"name": "v"}),
    RefusedRequest("bare", "POST", "/v1/moderations", 404, ABSENT, {"input": "x"}),
    RefusedRequest(
        "bare",
        "GET",
        "/v1/models/local/none",
        404,
        "Model 'local/none' not found. Use 'client.models.list()' to list available Models.",
    ),
    RefusedRequest("bare", "GET", "/v1/prompts/pmpt_x", 400, "Prompt pmpt_x:default not found", hosts=("llama_stack",)),
    RefusedRequest(
        "bare",
        "GET",
        "/v1/prompts/pmpt_x",
        404,
        "Prompt 'pmpt_x' not found. Use 'client.prompts.list()' to list available Prompts.",
        hosts=("ogx",),
    ),
    RefusedRequest(
        "vectors",
        "POST",
        "/v1/vector_stores",
        400,
        NO_EMBEDDER,
        {"name": "v"},
    ),
    RefusedRequest(
        "vectors",
        "POST",
        "/v1/vector_stores",
        400,
        "Embedding model 'local/nope' not found or not an embedding model",
        {"name": "v", "embedding_model": "local/nope"},
    ),
]


def leave_out_all(config: Json) -> None:
    config["apis"] = ["inference", "responses"]
    for api in ("files", "tool_runtime", "vector_io", "file_processors"):
        del config["providers"][api]


def leave_out_embedder(config: Json) -> None:
    add_vector_stores(config)
    del config["providers"]["inference"][0]["config"]["embedding_models"]


@pytest.fixture(scope="module")
def stacks(
    host: Host,
    stack_env: dict[str, str],
    upstream_process: UpstreamProcess,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, LiveStack]]:
    folder = tmp_path_factory.mktemp("host-errors")
    [vocabularies] = Path(sys.prefix).glob("lib/python*/site-packages/llama_index/core/_static/tiktoken_cache")
    found = {"INFERENCE_URL": upstream_process.client.base_url, "TIKTOKEN_CACHE_DIR": str(vocabularies)}
    env = {**stack_env, **found}
    changes = {"bare": leave_out_all, "starter": open_this_machine, "vectors": leave_out_embedder}
    configs = {name: variant(STARTER, folder / f"{name}.yaml", change) for name, change in changes.items()}
    servers = {name: LiveStack(config, env, folder / name, host=host) for name, config in configs.items()}
    with servers["bare"], servers["starter"], servers["vectors"]:
        yield servers


@pytest.mark.extended
@pytest.mark.day(4)
@pytest.mark.parametrize("refused", REFUSED, ids=lambda each: f"{each.stack} {each.method} {each.path} {each.status}")
def test_host_refuses_as_documented(refused: RefusedRequest, host: Host, stacks: dict[str, LiveStack]) -> None:
    url = stacks[refused.stack].base_url + refused.path
    answer = httpx.request(refused.method, url, json=refused.body or None, timeout=60, trust_env=False)
    found = message(answer.json())
    if refused.message == ABSENT:
        found = found.removesuffix(f": {refused.method} {refused.path}. {ABSENT_ADVICE}")
    assert ((answer.status_code, found) == (refused.status, refused.message)) == (host in refused.hosts)


@pytest.mark.extended
@pytest.mark.day(4)
@pytest.mark.parametrize("refused", REFUSED, ids=lambda each: f"{each.stack} {each.method} {each.path} {each.status}")
def test_error_of_the_host_is_in_the_documentation(refused: RefusedRequest) -> None:
    text = (REPOSITORY / "docs" / "reference" / "errors.md").read_text()
    rows = [line for line in text.splitlines() if f"`{refused.method} {refused.path}`" in line]
    assert any(f"| {refused.status} `{refused.message}` |" in row for row in rows)


def message(error: Any) -> str:
    """Return the message of an error in one of the hosts' forms."""
    return str(error["error"]["message"] if "error" in error else error["detail"])
