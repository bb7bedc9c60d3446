"""The whole stack on this machine: a model server and the stack in front of it."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from openai import OpenAI

from processes import Server, free_port, new_log, server
from terminal import progress

HERE = Path(__file__).parent
ROOT = HERE.parent
COMMANDS = Path(sys.executable).parent


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
def _llama_stack(logs: Path, state: Path, inference_url: str, port: int) -> Iterator[Stack]:
    url = f"http://127.0.0.1:{port}/v1"
    command = [str(COMMANDS / "llama"), "stack", "run", str(ROOT / "templates" / "starter" / "config.yaml")]
    settings = {
        "INFERENCE_URL": inference_url,
        "STATE_DIR": str(state),
        "RESPONSES_SECRET": os.environ.get("RESPONSES_SECRET", ""),
        "LLAMA_STACK_HOST": "127.0.0.1",
        "LLAMA_STACK_PORT": str(port),
    }
    ready, log = f"{url}/health", new_log(logs, "server")
    with ExitStack() as running:
        with progress("Starting the server: llama stack run templates/starter/config.yaml"):
            process = running.enter_context(server("The server", command, ready=ready, log=log, env=settings))
        yield Stack(process, url, inference_url)


@contextmanager
def running_stack(
    *, inference_url: str | None = None, state: Path | None = None, port: int | None = None
) -> Iterator[Stack]:
    """Run a stack with the model server at `inference_url`, or its own; `state` and `port` default to new ones.

    The logs are in the folder `logs` of `state`, where they are kept.
    """
    with ExitStack() as running:
        if state is None:
            state = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="llama-stack-responses-")))
        upstream = inference_url or running.enter_context(_model_server(state / "logs"))
        yield running.enter_context(_llama_stack(state / "logs", state, upstream, port or free_port()))
