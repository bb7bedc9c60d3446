"""One scripted model server and one live stack for all integration tests of a run.

The host that runs the stack is the one in the environment that runs the tests.
"""

import os
import sysconfig
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.clients import PythonClients
from tests.support.forks import Forks
from tests.support.loop_holds import LoopHolds
from tests.support.mcp_server import McpServers
from tests.support.otlp import Collector
from tests.support.selection import is_same_on_ogx
from tests.support.shifted_stack import ShiftedStack, shifted
from tests.support.stack import PACKAGES, STARTER, Host, LiveStack
from tests.support.tracebacks import assert_no_traceback
from tests.support.upstream import Upstream, UpstreamProcess
from tests.support.variants import (
    add_containers,
    add_host_provider,
    add_moderation,
    add_vector_stores,
    await_refusals,
    let_answer_whole,
    let_browse,
    let_count,
    let_read,
    let_summarize,
    open_this_machine,
    responses_config,
    variant,
)
from tests.support.web import Web
from tests.support.wire import Wire

if find_spec("ogx"):
    # The package imports its host's names from the host that is already imported, and some test modules import both.
    import_module("ogx")

collect_ignore = [] if find_spec("schemathesis") else ["test_fuzz.py"]
"""The fuzzing runs on one host only: this package writes the answers on both."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave out on OGX what differs in nothing that depends on the host."""
    if is_same_on_ogx(item):
        item.add_marker("one_host")


@pytest.fixture(scope="session")
def host() -> Host:
    """The host that runs the stack. The two cannot be installed together."""
    return "ogx" if find_spec("ogx") else "llama_stack"


@pytest.fixture(scope="session")
def stack_env() -> dict[str, str]:
    """The environment in which a stack finds the packages of this checkout, installed or not."""
    return {"PYTHONPATH": PACKAGES}


@pytest.fixture(scope="session", autouse=True)
def forks(host: Host, stack_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """The fork servers of all stacks that need no new process, and of those whose clock can be shifted."""
    env, folder = os.environ | stack_env, tmp_path_factory.mktemp("forks")
    with (
        Forks.of_host(host, env, folder / "log") as forks,
        Forks.of_host(host, shifted(env), folder / "shifted.log") as forks_of_shifted,
    ):
        LiveStack.forks, ShiftedStack.forks = forks, forks_of_shifted
        yield forks
        LiveStack.forks = ShiftedStack.forks = None


@pytest.fixture(scope="session", autouse=True)
def python_clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PythonClients]:
    """The fork servers of the Python clients."""
    with PythonClients(tmp_path_factory.mktemp("clients")) as clients:
        yield clients


@pytest.fixture(scope="session")
def upstream_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpstreamProcess]:
    """The scripted model server of every stack of the run."""
    with UpstreamProcess(tmp_path_factory.mktemp("upstream") / "upstream.log") as process:
        yield process


@pytest.fixture
def upstream(upstream_process: UpstreamProcess) -> Upstream:
    """The model server without scripts and recordings. Answers that earlier tests left running are aborted."""
    upstream_process.client.reset()
    return upstream_process.client


def site_packages() -> Path:
    """Return the folder of installed packages."""
    return Path(sysconfig.get_path("purelib"))


@pytest.fixture(scope="session")
def internet() -> Iterator[Web]:
    """The web server that stands for the internet, with SearXNG and an image server below `/searxng` and `/images`."""
    with Web() as web:
        yield web


@pytest.fixture
def web(internet: Web) -> Web:
    """The same web server without pages and without recorded requests."""
    internet.reset()
    return internet


@pytest.fixture(scope="session")
def collector() -> Iterator[Collector]:
    """The collector of the stack's spans and metrics."""
    with Collector() as collector:
        yield collector


@pytest.fixture(scope="session")
def stack(
    host: Host,
    stack_env: dict[str, str],
    upstream_process: UpstreamProcess,
    internet: Web,
    collector: Collector,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LiveStack]:
    """The live stack of the run: the starter template, with its state in a temporary folder.

    In addition to the template's own inference provider, `local`, it has the host's, `vllm`, for the same model server,
    containers to run code in, a SearXNG server to search with, an image server, vector stores, models that take other
    media, and a moderator. It sends its telemetry to a collector.
    """

    def change(config: dict[str, Any]) -> None:
        add_host_provider(config)
        add_containers(config)
        open_this_machine(config)
        await_refusals(config)
        let_browse(config)
        let_answer_whole(config)
        let_summarize(config)
        let_read(config)
        let_count(config)
        add_vector_stores(config)
        add_moderation(config, host)
        # The template drops it.
        responses_config(config)["unreadable_reasoning"] = "refuse"

    env = {
        **stack_env,
        **collector.env,
        "INFERENCE_URL": upstream_process.client.base_url,
        "SEARXNG_URL": internet.url("/searxng"),
        "IMAGE_URL": internet.url("/images/v1"),
        "IMAGE_API_KEY": "image-key-4711",
        # The host counts tokens of files with vocabularies that tiktoken would download; this package has them.
        "TIKTOKEN_CACHE_DIR": str(site_packages() / "llama_index" / "core" / "_static" / "tiktoken_cache"),
    }
    config = variant(STARTER, tmp_path_factory.mktemp("config") / "config.yaml", change)
    with LiveStack(config, env, tmp_path_factory.mktemp("stack"), host=host) as live:
        yield live


@pytest.fixture(scope="session")
def early(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveStack]:
    """A stack that sends the headers of a stream before its model server has answered."""

    def change(config: dict[str, Any]) -> None:
        responses_config(config)["stream_refusal_seconds"] = 0

    env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url}
    config = variant(STARTER, tmp_path_factory.mktemp("early-config") / "config.yaml", change)
    with LiveStack(config, env, tmp_path_factory.mktemp("early"), host=host) as live:
        yield live


@pytest.fixture(params=["local", "vllm"])
def provider(request: pytest.FixtureRequest) -> str:
    """The inference provider: the bundled one (`local`) or the host's own (`vllm`)."""
    found: str = request.param
    return found


@pytest.fixture(scope="session")
def mcp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[McpServers]:
    """MCP servers; one of them requires a token."""
    with McpServers(tmp_path_factory.mktemp("mcp") / "mcp.log", "token-canary-4711") as servers:
        yield servers


@pytest.fixture
def client(stack: LiveStack, upstream: Upstream) -> Iterator[openai.OpenAI]:
    """An OpenAI client of the stack, without retries."""
    with stack.client() as client:
        yield client


@pytest.fixture
def wire(stack: LiveStack, upstream: Upstream) -> Iterator[Wire]:
    """A plain HTTP client of the stack."""
    with Wire(stack) as wire:
        yield wire


@pytest.fixture
def calm(stack: LiveStack) -> Iterator[None]:
    """For tests of errors: check that the server logs no traceback during the test."""
    before = stack.log.stat().st_size
    yield
    assert_no_traceback(stack.log, before)


@pytest.fixture
def loop_holds(stack: LiveStack) -> LoopHolds:
    """The times since the start of the test during which the stack's event loop was blocked."""
    return LoopHolds(stack.log)
