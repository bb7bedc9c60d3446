"""The starter template as users run it: in any folder, with their environment, before the model server is up."""

import os
import re
import signal
import sys
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.support.forks import Forks
from tests.support.process import Child, StartError, free_port
from tests.support.stack import READY_SECONDS, STARTER, Host, LiveStack, run_command
from tests.support.strict import check_stream, read_sse
from tests.support.tracebacks import assert_no_traceback
from tests.support.upstream import Upstream, UpstreamProcess, reasoning, reply, text, tool_call
from tests.support.variants import Json, responses_config, variant
from tests.support.websocket_client import WebSocketClient, over_http
from tests.support.wire import Wire, error_of, final, output_text

pytestmark = pytest.mark.live

SETTINGS = (
    "INFERENCE_URL",
    "INFERENCE_API_KEY",
    "STATE_DIR",
    "RESPONSES_SECRET",
    "LLAMA_STACK_PORT",
    "LLAMA_STACK_HOST",
    "OGX_PORT",
)
PORT = {"llama_stack": "LLAMA_STACK_PORT", "ogx": "OGX_PORT"}
SECRET = b64encode(b"a secret of thirty-two characters"[:32]).decode()
KEY = "sk-of-the-late-model-server"
FLUSH_SECONDS = 50.0
"""Longer than a busy machine takes to end responses. After that time the server closes connections whatever they say."""


# -- with everything set -------------------------------------------------------


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """An empty home folder and an empty working folder, to find the files that a stack leaves."""
    home, cwd = tmp_path / "home", tmp_path / "cwd"
    home.mkdir()
    cwd.mkdir()
    return home, cwd


@pytest.mark.extended
def test_late_model_server_needs_no_restart_and_restart_loses_no_data(
    host: Host, stack_env: dict[str, str], tmp_path: Path, folders: tuple[Path, Path]
) -> None:
    home, cwd = folders
    port = free_port()
    url = f"http://127.0.0.1:{port}/v1"
    env = {**stack_env, "HOME": str(home), "INFERENCE_URL": url, "INFERENCE_API_KEY": KEY, "RESPONSES_SECRET": SECRET}
    config = variant(STARTER, tmp_path / "config.yaml", take_time_to_end)
    with LiveStack(config, env, tmp_path / "state", host=host, cwd=cwd) as stack:
        check_too_early(stack)
        with UpstreamProcess(tmp_path / "upstream.log", port) as late:
            with Wire(stack, idle_seconds=60) as wire:
                first = wire.create(model="local/echo", input="at last")
                assert output_text(first) == "at last"
                assert late.client.requests("echo")[0].headers["authorization"] == f"Bearer {KEY}"
                check_no_search_service(wire)
                kept = kept_by_the_client(wire, late.client)
                # Neither an idle connection nor an open stream delays the shutdown.
                failed = check_stop_under_a_stream(stack, late.client)
            stack.start()
            check_after_restart(stack, late.client, first, failed)
            check_sealed(stack, late.client, kept)
    log = stack.log.read_text(errors="replace")
    assert SECRET not in log
    assert log.count("omitted a tool of requests that this stack has not: type web_search") <= 2  # once a process
    assert "omitted a tool of requests that this stack has not: type web_search" in log
    assert_no_traceback(stack.log)
    assert {path.name for path in stack.state_dir.iterdir()} >= {"responses.db", "files", "host-kv.db"}
    assert [*home.iterdir(), *cwd.iterdir()] == []


def take_time_to_end(config: Json) -> None:
    """Let a server that shuts down wait longer for the last events."""
    responses_config(config)["flush_seconds"] = FLUSH_SECONDS


def check_too_early(stack: LiveStack) -> None:
    """Check that without a model server, every request gets the same error."""
    with Wire(stack) as wire:
        for stream in (False, True):
            answer = wire.post({"model": "local/echo", "input": "too early", "stream": stream})
            assert error_of(answer, 502)["message"] == (
                "The connection to the inference provider failed (ConnectionRefusedError). "
                "Check that the model server is running and that the stack's configuration has its URL."
            )


def check_no_search_service(wire: Wire) -> None:
    """Check that without a search service, web search is left out, and refused only if it has to be called."""
    search = {"type": "web_search"}
    request = {"model": "local/echo", "input": "search"}
    for tool in (search, {**search, "external_web_access": False}):
        answered = wire.create(**request, tools=[tool])
        assert output_text(answered) == "search"
        assert answered["tools"][0]["type"] == "web_search"
        named = wire.post({**request, "tools": [tool], "tool_choice": search})
        assert error_of(named, 400)["param"] == "tool_choice"


def check_stop_under_a_stream(stack: LiveStack, upstream: Upstream) -> Json:
    """Check that a shutdown ends a stream and a WebSocket response; return the stream's response."""
    for model in ("slow", "turn"):
        upstream.script(model, reply(text("so ", "far"), hold=2))
    with WebSocketClient(stack) as websocket, WebSocketClient(stack) as silent:
        websocket.ask(model="local/turn", input="take your time")
        events = [*websocket.until("response.output_text.delta"), *websocket.until("response.output_text.delta")]
        failed = check_stop_under_a_client(stack)
        events += map(over_http, websocket.until("response.failed"))
        assert check_stream(events)["error"] == failed["error"]
        assert websocket.closed()[0] == silent.closed()[0] == 1012
    for model in ("slow", "turn"):
        assert upstream.wait_for(model, ended=True)[0].ended == "client_gone"
    return failed


def check_stop_under_a_client(stack: LiveStack) -> Json:
    """Stop the stack during a stream, and return the stream's response. The stream ends with the response."""
    request = {"model": "local/slow", "input": "take your time", "stream": True}
    with httpx.stream(
        "POST", f"{stack.base_url}/v1/responses", json=request, timeout=60, trust_env=False, verify=False
    ) as answer:
        pieces = answer.iter_bytes()
        body = next(pieces)
        while b"far" not in body:
            body += next(pieces)
        with ThreadPoolExecutor(1) as stopping:
            ended = stopping.submit(stack.stop)
            body += b"".join(pieces)
        assert ended.result() in (0, -signal.SIGTERM)
    failed = check_stream(read_sse([body]).events)
    assert (failed["status"], output_text(failed)) == ("failed", "so far")
    assert failed["error"]["message"] == "The server is shutting down. Try again."
    return failed


def kept_by_the_client(wire: Wire, upstream: Upstream) -> list[Json]:
    """Return the items of an unstored turn, with sealed reasoning."""
    upstream.script("thinker", reply(reasoning("Hm."), tool_call(0, "c1", "f", "{}")))
    question = {"role": "user", "content": "think"}
    tools = [{"type": "function", "name": "f"}]
    thought, call = wire.create(model="local/thinker", input=[question], tools=tools, store=False)["output"]
    sealed = {"type": "reasoning", "summary": [], "encrypted_content": thought["encrypted_content"]}
    return [question, sealed, call, {"type": "function_call_output", "call_id": "c1", "output": "ok"}]


def check_sealed(stack: LiveStack, upstream: Upstream, kept: list[Json]) -> None:
    """Check that reasoning that was sealed before the restart can be opened."""
    upstream.script("thinker", reply(text("Done.")))
    with Wire(stack) as wire:
        assert output_text(wire.create(model="local/thinker", input=kept, store=False)) == "Done."
    assert upstream.requests("thinker")[-1].body["messages"][1]["reasoning_content"] == "Hm."


def check_after_restart(stack: LiveStack, upstream: Upstream, first: Json, failed: Json) -> None:
    """Check that responses from before the restart are stored and can be continued."""
    with Wire(stack) as wire:
        assert wire.retrieve(first["id"]) == first
        assert wire.retrieve(failed["id"]) == failed
        second = final(wire.stream(model="local/echo", input="go on", previous_response_id=first["id"]))
    assert output_text(second) == "go on"
    contents = [message["content"] for message in upstream.requests("echo")[-1].body["messages"]]
    assert contents == ["at last", "at last", "go on"]


@pytest.mark.both_hosts
def test_restart_with_other_settings_drops_old_models_and_tools(
    host: Host, stack_env: dict[str, str], upstream: Upstream, tmp_path: Path
) -> None:
    """The host's registry stores the models of a server and the provider of a tool."""
    first = {**stack_env, "INFERENCE_URL": upstream.base_url, "WEB_SEARCH": "ddgs"}
    with LiveStack(STARTER, first, tmp_path / "state", host=host) as stack:
        assert "local/echo" in models(stack)
    nowhere = f"http://127.0.0.1:{free_port()}"
    second = {**stack_env, "INFERENCE_URL": f"{nowhere}/v1", "SEARXNG_URL": nowhere}
    with LiveStack(STARTER, second, tmp_path / "state", host=host) as stack, Wire(stack) as wire:
        assert models(stack) == []
        request = {"model": "local/echo", "input": "search", "tools": [{"type": "web_search"}]}
        assert "model server is running" in error_of(wire.post(request), 502)["message"]


def models(stack: LiveStack) -> list[str]:
    """Return the ids of the stack's models."""
    with stack.client() as client:
        return [model.id for model in client.models.list()]


# -- with nothing set ----------------------------------------------------------


@pytest.mark.both_hosts
def test_default_settings_bind_to_localhost_and_use_one_folder(
    host: Host, stack_env: dict[str, str], tmp_path: Path, folders: tuple[Path, Path]
) -> None:
    """Only the port is set, to avoid a fixed one. Ctrl-C ends the server."""
    home, cwd = folders
    port = free_port()
    env = {**bare_environment(), **stack_env, "HOME": str(home), PORT[host]: str(port)}
    child = Child(without_port(host), log=tmp_path / "stack.log", env=env, cwd=cwd)
    try:
        url = f"http://127.0.0.1:{port}/v1"
        child.wait_ready(lambda: answer(f"{url}/health"), seconds=READY_SECONDS)
        # This request reads the store and needs no model server.
        error_of(httpx.get(f"{url}/responses/resp_{'0' * 24}", timeout=60, trust_env=False, verify=False), 404)
        child.signal(signal.SIGINT)
        assert ended(child) in (0, 130, -signal.SIGINT)
    finally:
        child.kill()
    log = child.log.read_text(errors="replace")
    assert f"Uvicorn running on http://127.0.0.1:{port} " in log
    assert "base_url: http://localhost:8080/v1" in log  # the host logs its resolved configuration
    assert_no_traceback(child.log)
    assert [path.name for path in home.iterdir()] == [".llama-stack-responses"]
    assert (home / ".llama-stack-responses" / "responses.db").exists()
    assert list(cwd.iterdir()) == []


def bare_environment() -> dict[str, str]:
    """Return this process's environment without the variables that the template reads."""
    return {name: value for name, value in os.environ.items() if name not in SETTINGS}


def without_port(host: Host) -> list[str]:
    """Return the host's command line for the template without a port, which the environment sets."""
    command = run_command(host, Path(sys.executable), STARTER, port=0)
    at = command.index("--port")
    return command[:at] + command[at + 2 :]


def answer(url: str) -> httpx.Response | None:
    """Return the answer, or None if the server is not reachable."""
    try:
        return httpx.get(url, timeout=60, trust_env=False, verify=False)
    except httpx.TransportError:
        return None


def ended(child: Child) -> int:
    """Wait until a process has ended by itself, and return its exit status."""
    with pytest.raises(StartError):  # raised when the process has ended
        child.wait_ready(lambda: None, seconds=READY_SECONDS)
    assert child.returncode is not None, child.tail()
    return child.returncode


# -- with something wrong ------------------------------------------------------


def misspell(config: Json) -> None:
    """Misspell a setting of one provider and two of another."""
    config["providers"]["inference"][0]["config"]["base_ulr"] = "x"
    responses_config(config)["retention_dayz"] = 7
    responses_config(config)["fetch"] = {"allowed_network": "loopback"}


def refer_to_nothing(config: Json) -> None:
    """Refer to a key-value backend that the stack does not have."""
    responses_config(config)["store"] = {"type": "host", "backend": "kv_elsewhere"}


def misplace(config: Json) -> None:
    """Put a setting of the provider where the host ignores it."""
    config["fetch"] = {"allowed_networks": ["loopback"]}


def require_nothing(config: Json) -> None:
    """Name inference providers that the stack does not have, and misspell a network."""
    responses_config(config).update(
        ready_providers=["locl"], model_servers={"locla": {"concurrency": 2}}, fetch={"allowed_networks": ["loopbck"]}
    )


def leave(_: Json) -> None:
    """Leave the configuration unchanged."""


WRONG: dict[str, tuple[dict[str, str], Callable[[Json], None], str]] = {
    "url": (
        {"INFERENCE_URL": "localhost:8080"},
        leave,
        "config.yaml has a wrong setting: line LINE: 'base_url' of 'local' (from INFERENCE_URL in the environment): "
        "'localhost:8080' does not begin with http:// or https://.",
    ),
    "setting": (
        {},
        misspell,
        "config.yaml has 3 wrong settings: "
        "line LINE: 'base_ulr' of 'local': there is no such setting here; did you mean 'base_url'? "
        "line LINE: 'fetch.allowed_network' of 'responses': there is no such setting here; did you mean "
        "'allowed_networks'? "
        "line LINE: 'retention_dayz' of 'responses': there is no such setting here; did you mean 'retention_days'?",
    ),
    "values": (
        {"WORKERS": "0"},
        require_nothing,
        "config.yaml has 4 wrong settings: "
        "line LINE: 'server.workers' (from WORKERS in the environment): the number of server processes is expected "
        "here, from 1 to 256. "
        "line LINE: 'fetch.allowed_networks.0' of 'responses': this is not a network such as 10.1.0.0/16, nor "
        "'loopback', which is this machine; did you mean 'loopback'? "
        "line LINE: 'model_servers.locla' of 'responses': the stack has no inference provider 'locla'; did you mean "
        "'local'? "
        "line LINE: 'ready_providers.0' of 'responses': the stack has no inference provider 'locl'; did you mean "
        "'local'?",
    ),
    "level": ({}, misplace, "'fetch' is at a level where it is ignored: move it into the 'config' of the provider"),
    "backend": ({}, refer_to_nothing, "Unknown KVStore backend 'kv_elsewhere'"),
}


@pytest.mark.both_hosts
def test_invalid_configuration_is_named_and_the_server_does_not_start(
    host: Host, stack_env: dict[str, str], forks: Forks, tmp_path: Path
) -> None:
    """The stacks are started concurrently, because a host takes as long to refuse as to start."""
    children: dict[str, Child] = {}
    try:
        for name, (env, change, _) in WRONG.items():
            config = variant(STARTER, tmp_path / name / "config.yaml", change)
            command = run_command(host, Path(sys.executable), config, free_port())
            whole = {**bare_environment(), **stack_env, **env, "STATE_DIR": str(config.parent)}
            log = config.with_name("stack.log")
            children[name] = forks.start(command, log=log, env=whole, cwd=config.parent) or Child(
                command, log=log, env=whole, cwd=config.parent
            )
        for name, child in children.items():
            ended(child)
            output = child.log.read_text(errors="replace")
            assert_no_traceback(child.log)
            assert "Uvicorn running" not in output
            last = " ".join(output.rpartition("\n\n")[2].split())
            assert WRONG[name][2] in re.sub(r"line \d+", "line LINE", last), name
    finally:
        for child in children.values():
            child.kill()
