"""The demo's server, which runs until Ctrl-C.

Run it with: make serve
    INFERENCE_URL      use this model server instead of the small bundled model
    INFERENCE_API_KEY  its key, if required
    WEB_SEARCH         `ddgs` searches the web with public search engines
    FILE_SEARCH        `local` starts an embedding model and turns on vector stores
    CODE_PACKAGES      packages that code in the sandbox can import, such as numpy,pandas,matplotlib
    ALLOWED_NETWORKS   `loopback` lets requests name MCP servers, pages and files of this machine
    STATE_DIR          store responses in this folder (.state in the checkout)
    LLAMA_STACK_PORT   listen on this port (8321)
    WORKERS            start so many server processes, which share the port (1)
"""

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C exits silently while packages are imported

import fcntl
import os
import shlex
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
from pydantic import ValidationError

from environment import check_environment, chosen_port, writable
from llama_stack_openai_chat.config import OpenAIChatConfig
from processes import ServerError, bypass_proxies, exit_on_signals
from stack import ROOT, Stack, running_stack
from terminal import bold, error
from tools import check_searxng, described, why_no_sandbox

CHECK_URL = "check INFERENCE_URL, which mostly ends with /v1"


@contextmanager
def reserved_port() -> Iterator[int]:
    """Reserve the requested port, if it is unused.

    A server listens only after some seconds. Until then, a lock keeps a second program from the port: that of the byte
    with the port's number, in one file for all ports.
    """
    port = chosen_port()
    taken = ValueError(f"Port {port} is taken; choose another: make serve LLAMA_STACK_PORT=8400")
    file = Path(tempfile.gettempdir()) / f"llama-stack-responses-{os.getuid()}.lock"
    locks = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    with os.fdopen(locks, "r+") as held, socket.socket() as probe:
        try:
            fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except (BlockingIOError, PermissionError):  # which of them, depends on the system
            raise taken from None
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise taken
        yield port


def chosen_model_server() -> str | None:
    """Return the requested model server; check its URL and key."""
    url, key = os.environ.get("INFERENCE_URL") or None, os.environ.get("INFERENCE_API_KEY", "")
    try:
        OpenAIChatConfig(base_url=url or "http://localhost")
    except ValidationError as problem:
        raise ValueError(
            f"INFERENCE_URL is {url!r}; it must be of the form https://HOST:PORT/PATH, and a key goes into "
            "INFERENCE_API_KEY."
        ) from problem
    if not (key.isascii() and key.isprintable()):
        raise ValueError("INFERENCE_API_KEY has characters that a header cannot have.")
    if key.isdecimal() or key.lower() in ("true", "false"):
        raise ValueError(
            "INFERENCE_API_KEY is a number, true or false, which the host does not pass on as text; "
            "docs/reference/configuration.md says how to give such a key."
        )
    return url


def chosen_folder() -> Path:
    """Return the folder for responses, if it is writable."""
    return writable("STATE_DIR", Path(os.environ.get("STATE_DIR") or ROOT / ".state"))


def first_name(listed: object) -> str | None:
    """Return the name of the first model in a decoded answer, which may be anything."""
    match listed:
        case {"data": [{"id": str(name)}, *_]}:
            return name
    return None


def listed_model(inference_url: str) -> str:
    """Return the stack's name for the model server's first model, or a placeholder."""
    key = os.environ.get("INFERENCE_API_KEY") or "none"
    try:
        with openai.OpenAI(base_url=inference_url, api_key=key, max_retries=0, timeout=5.0) as client:
            listed = client.get("/models", cast_to=object)
        name, why = first_name(listed), "lists no model"
        if not name and not isinstance(listed, dict):
            why = f"answers with no list of models: {CHECK_URL}"
    except ValueError:  # invalid JSON
        name, why = None, f"answers with no list of models: {CHECK_URL}"
    except openai.NotFoundError:
        name, why = None, f"has no list of models (status 404): {CHECK_URL}"
    except (openai.AuthenticationError, openai.PermissionDeniedError) as problem:
        name, why = None, f"refuses the key (status {problem.status_code}): set INFERENCE_API_KEY to the right one"
    except openai.APIConnectionError:
        name, why = None, "cannot be reached: requests fail until it answers"
    except openai.OpenAIError as problem:
        name, why = None, f"does not list its models ({type(problem).__name__}): requests fail until it answers"
    if name:
        return f"local/{name}"
    print(f"\nThe model server at {inference_url} {why}. Put its model's name for MODEL below.")
    return "local/MODEL"


def introduce(stack: Stack, state: Path, no_sandbox: str | None) -> None:
    """Print what runs, and how to use it."""
    model = listed_model(stack.inference_url)
    body = f'{{"model": "{model}", "input": "Say hello."}}'
    print(f"\n{bold('The server runs at ' + stack.base_url)}. Responses are kept in {state}.")
    print(f"{bold('Its page: ' + stack.page)}")
    print(f"Its log: {stack.server.log}")
    print("\nHosted tools:\n\n" + "\n".join(described(no_sandbox)))
    print(f"\nFrom a shell:\n\n  curl {stack.base_url}/responses -H 'content-type: application/json' \\")
    print(f"    -d {shlex.quote(body)}")
    print("\nFrom Python (.venv-run/bin/python, or any with the openai package):\n\nfrom openai import OpenAI")
    print(f'client = OpenAI(base_url="{stack.base_url}", api_key="none")')
    print(f'print(client.responses.create(model="{model}", input="Say hello.").output_text)')
    print("\nCtrl-C ends it.", flush=True)


def serve() -> None:
    """Serve until a signal arrives."""
    check_environment()
    check_searxng()
    url, state = chosen_model_server(), chosen_folder()
    no_sandbox = why_no_sandbox()
    if not no_sandbox:
        os.environ.setdefault("CONTAINERS_DIR", str(state / "containers"))
    with (
        reserved_port() as port,
        running_stack(inference_url=url, state=state, port=port, embeds=bool(os.environ.get("FILE_SEARCH"))) as stack,
    ):
        introduce(stack, state, no_sandbox)
        stack.server.wait_until_ended()
        raise stack.server.failure("ended by itself")


def main() -> int:
    """Run the server; return 0 if Ctrl-C ended it."""
    exit_on_signals()
    bypass_proxies()
    try:
        serve()
    except (ServerError, ValueError) as problem:
        error(f"\n{problem}")
        return 1
    except KeyboardInterrupt:
        print("\nStopped.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
