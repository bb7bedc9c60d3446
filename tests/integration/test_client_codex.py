"""The unmodified Codex CLI with a custom provider: it runs commands, patches files and calls its own MCP servers."""

import json
import os
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.certificates import Certificates
from tests.support.clients import SCRIPTS, FinishedClient, installed, run
from tests.support.search import ENGINES
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess, error, reasoning, reply, text, tool_call
from tests.support.web import Answer, ReceivedRequest, Web

pytestmark = [pytest.mark.live, pytest.mark.one_host, pytest.mark.extended]

type Json = dict[str, Any]
type Codex = Callable[..., FinishedClient]

NAME: Final = "codex"
DOT: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
"""A PNG of one pixel."""
SAID: Final = reply(reasoning("Easy."), text("Hello ", "from the model."))
CONFIG: Final = """\
model = "local/codex"
model_provider = "stack"
model_catalog_json = "{home}/models.json"

[model_providers.stack]
name = "Llama Stack"
base_url = "{url}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0

[mcp_servers.my__dictionary]
command = "{python}"
args = ["{mcp_server}"]
startup_timeout_sec = 90
"""


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Codex's descriptions of a model with free-form patches and of one that writes code, renamed for our models."""
    folder = tmp_path_factory.mktemp("catalog")
    models = json.loads(run([codex_command(), "debug", "models"], folder).out)["models"]
    free = next(each for each in models if each["apply_patch_tool_type"] == "freeform" and not each.get("tool_mode"))
    code = next(each for each in models if each.get("tool_mode") == "code_mode_only")
    ours = {"local/codex": free, "local/code": code}
    return json.dumps({"models": [{**model, "slug": slug, "upgrade": None} for slug, model in ours.items()]})


def codex_command() -> Path:
    """Return the path of the program."""
    return installed("codex") / "node_modules" / ".bin" / "codex"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """The folder that Codex works in."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def codex(stack: LiveStack, upstream: Upstream, tmp_path: Path, work: Path, catalog: str) -> Codex:
    """Run `codex exec`."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "models.json").write_text(catalog)
    mcp_server = SCRIPTS / "mcp_server.py"
    config = CONFIG.format(home=home, url=stack.base_url, python=sys.executable, mcp_server=mcp_server)
    (home / "config.toml").write_text(config)

    def codex_exec(*arguments: str) -> FinishedClient:
        options = ["--skip-git-repo-check", "--json"]
        access = ["-c", 'sandbox_mode="danger-full-access"', "-c", 'approval_policy="never"']
        return run([codex_command(), "exec", *access, *arguments, *options], work, {"CODEX_HOME": str(home)})

    return codex_exec


def items(finished: FinishedClient, kind: str) -> list[Json]:
    """Return the completed items of a kind in Codex's output."""
    assert finished.code == 0, f"{finished.out}\n{finished.errors}"
    events = [json.loads(line) for line in finished.out.splitlines() if line.startswith("{")]
    return [each["item"] for each in events if each["type"] == "item.completed" and each["item"]["type"] == kind]


def answers(finished: FinishedClient) -> list[str]:
    """Return the model's messages to the user."""
    return [item["text"] for item in items(finished, "agent_message")]


def chat(upstream: Upstream, number: int = -1) -> Json:
    """Return the body of a chat request to the model."""
    body: Json = upstream.requests(NAME)[number].body
    return body


def last_output(upstream: Upstream) -> str:
    """Return the output of the last call as the model received it."""
    last = chat(upstream)["messages"][-1]
    assert last["role"] == "tool"
    return str(last["content"])


def offered(request: Json) -> set[str]:
    """Return the names of the tools in a chat request."""
    return {tool["function"]["name"] for tool in request["tools"]}


@pytest.mark.smoke
def test_codex_prints_the_answer(codex: Codex, upstream: Upstream) -> None:
    upstream.script(NAME, SAID)
    assert answers(codex("Say hello.")) == ["Hello from the model."]
    assert {"exec_command", "apply_patch", "tool_search"} <= offered(chat(upstream))


def test_codex_runs_a_command_of_the_model(codex: Codex, upstream: Upstream, work: Path) -> None:
    (work / "note.txt").write_text("canary-4711")
    called = tool_call(0, "c1", "exec_command", json.dumps({"cmd": "cat note.txt"}))
    upstream.script(NAME, [reply(reasoning("I look."), called), reply(text("It says canary-4711."))])
    finished = codex("What does note.txt say?")
    assert answers(finished) == ["It says canary-4711."]
    [command] = items(finished, "command_execution")
    assert (command["exit_code"], "canary-4711" in command["aggregated_output"]) == (0, True)
    assert "canary-4711" in last_output(upstream)
    # Codex sends `store: false` and returns the reasoning as sealed content only.
    assert chat(upstream)["messages"][-2]["reasoning_content"] == "I look."


def test_codex_over_websocket_sends_only_new_items(
    codex: Codex, upstream: Upstream, work: Path, stack: LiveStack
) -> None:
    """Codex prepares its first turn before it has the user's input, and sends only new items after that."""
    (work / "note.txt").write_text("canary-4711")
    called = tool_call(0, "c1", "exec_command", json.dumps({"cmd": "cat note.txt"}))
    upstream.script(NAME, [reply(reasoning("I look."), called), reply(text("It says canary-4711."))])
    with stack.log.open(errors="replace") as log:
        log.seek(0, os.SEEK_END)
        finished = codex("What does note.txt say?", "-c", "model_providers.stack.supports_websockets=true")
        requests = [line for line in log if "/v1/responses" in line]
    assert answers(finished) == ["It says canary-4711."]
    assert requests
    assert all("WebSocket /v1/responses" in line for line in requests), requests
    first, second = (chat(upstream, number)["messages"] for number in range(2))
    assert second[: len(first)] == first
    assert "canary-4711" in last_output(upstream)
    assert second[-2]["reasoning_content"] == "I look."


def test_codex_resumed_session_keeps_history(codex: Codex, upstream: Upstream) -> None:
    upstream.script(NAME, [SAID, reply(text("You said: hello."))])
    codex("Say hello.")
    finished = codex("resume", "--last", "What did I say?")
    assert answers(finished) == ["You said: hello."]
    texts = [message["content"] for message in chat(upstream)["messages"] if message["role"] != "system"]
    assert texts[-3:] == ["Say hello.", "Hello from the model.", "What did I say?"]


def test_codex_applies_a_patch_of_the_model(codex: Codex, upstream: Upstream, work: Path) -> None:
    (work / "a.txt").write_text("one\ntwo\n")
    patch = "*** Begin Patch\n*** Update File: a.txt\n@@\n one\n-two\n+zwei\n*** End Patch\n"
    arguments = json.dumps({"input": patch})
    pieces = [arguments[start : start + 7] for start in range(0, len(arguments), 7)]
    upstream.script(NAME, [reply(tool_call(0, "c1", "apply_patch", *pieces)), reply(text("Patched."))])
    assert answers(codex("Translate two.")) == ["Patched."]
    assert (work / "a.txt").read_text() == "one\nzwei\n"
    [tool] = [tool for tool in chat(upstream)["tools"] if tool["function"]["name"] == "apply_patch"]
    assert "Lark grammar" in tool["function"]["description"]
    replayed = chat(upstream)["messages"][-2]["tool_calls"][0]["function"]
    assert json.loads(replayed["arguments"]) == {"input": patch}


def test_codex_image_reaches_the_model(codex: Codex, upstream: Upstream, work: Path) -> None:
    (work / "dot.png").write_bytes(b64decode(DOT))
    called = tool_call(0, "c1", "view_image", json.dumps({"path": str(work / "dot.png")}))
    upstream.script(NAME, [reply(called), reply(text("A dot."))])
    assert answers(codex("What does dot.png show?")) == ["A dot."]
    shown = json.dumps(chat(upstream)["messages"][-1]["content"])
    assert "data:image/png;base64," in shown


LOOKUP: Final = reply(tool_call(0, "c2", "mcp__my__dictionary__lookup", '{"word":"otter"}'))


def test_codex_calls_its_own_mcp_server(codex: Codex, upstream: Upstream) -> None:
    upstream.script("plain", [LOOKUP, reply(text("Five letters."))])
    assert answers(codex("-m", "local/plain", "How long is otter?")) == ["Five letters."]
    first, second = (each.body for each in upstream.requests("plain"))
    assert "mcp__my__dictionary__lookup" in offered(first)
    assert "otter is a word of 5 letters." in second["messages"][-1]["content"]
    assert second["messages"][-2]["tool_calls"][0]["function"]["name"] == "mcp__my__dictionary__lookup"


def test_codex_tool_search_offers_deferred_tools(codex: Codex, upstream: Upstream) -> None:
    search = reply(tool_call(0, "c1", "tool_search", '{"query":"dictionary lookup word"}'))
    upstream.script(NAME, [search, LOOKUP, reply(text("Five letters."))])
    assert answers(codex("How long is otter?")) == ["Five letters."]
    seen = ["mcp__my__dictionary__lookup" in offered(chat(upstream, number)) for number in range(3)]
    assert seen == [False, True, True]
    assert chat(upstream, 1)["messages"][-1]["content"] == "Tools that can be called now: mcp__my__dictionary__lookup."
    assert "otter is a word of 5 letters." in last_output(upstream)


def test_codex_runs_code_that_calls_tools(codex: Codex, upstream: Upstream, work: Path) -> None:
    (work / "note.txt").write_text("canary-4711")
    code = 'const ran = await tools.exec_command({cmd: "cat note.txt"});\ntext(ran.output);'
    call = tool_call(0, "c1", "functions__exec", json.dumps({"input": code}))
    upstream.script("code", [reply(call), reply(text("It says canary-4711."))])
    assert answers(codex("-m", "local/code", "What does note.txt say?")) == ["It says canary-4711."]
    last = upstream.requests("code")[-1].body
    assert "canary-4711" in last["messages"][-1]["content"]
    assert last["messages"][-2]["tool_calls"][0]["function"]["name"] == "functions__exec"


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (error(400, "The moon is full."), "The moon is full."),
        (error(429, "Slow down."), "429"),
        (error(503, "Gone fishing."), "502"),
    ],
    ids=["refused", "too many", "broken"],
)
def test_codex_reports_a_model_server_error(codex: Codex, upstream: Upstream, failure: Any, words: str) -> None:
    upstream.script(NAME, failure)
    finished = codex("Say hello.")
    assert finished.code != 0
    assert words in finished.out


def test_codex_reports_an_error_in_the_middle_of_an_answer(codex: Codex, upstream: Upstream) -> None:
    upstream.script(NAME, reply(text("Hello "), end="error_frame", body={"error": {"message": "The disk is on fire."}}))
    finished = codex("Say hello.")
    assert finished.code != 0
    assert "turn.failed" in finished.out


# -- the starter template as it is, with a configuration of three lines ---------------------------------------------------

THREE_LINES: Final = """\
openai_base_url = "{url}/v1"
model = "local/codex"
"""
"""The configuration. Codex takes the key from the environment, and keeps a WebSocket open."""
OVER_HTTP: Final = """\
model = "local/codex"
model_provider = "stack"

[model_providers.stack]
name = "Llama Stack"
base_url = "{url}/v1"
wire_api = "responses"
"""
"""The same with a provider of its own, which Codex asks over HTTP."""
CODE: Final = "local/code"
FULL_ACCESS: Final = ("-c", 'sandbox_mode="danger-full-access"')
"""With full access, Codex requests live web search."""
FOUND: Final = [("https://otters.example/", "Otters", "Otters sleep hand in hand.")]


class Starter:
    """A stack of the starter template, and Codex with three lines."""

    def __init__(self, stack: LiveStack, folder: Path) -> None:
        self.stack = stack
        self._home, self._work = folder / "codex home", folder / "work"

    def codex(self, *arguments: str, config: str = THREE_LINES, catalog: str = "") -> FinishedClient:
        """Run `codex exec`, with descriptions of models if there are some."""
        for each in (self._home, self._work):
            each.mkdir(exist_ok=True)
        if catalog:
            (self._home / "models.json").write_text(catalog)
            config = f'model_catalog_json = "{self._home}/models.json"\n{config}'
        (self._home / "config.toml").write_text(config.format(url=self.stack.base_url))
        command: list[str | Path] = [codex_command(), "exec", "--skip-git-repo-check", "--json", *arguments]
        return run(command, self._work, {"CODEX_HOME": str(self._home), "CODEX_API_KEY": "none"})


@pytest.fixture(scope="module")
def plain_starter(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Starter]:
    """The starter template without a search service."""
    folder = tmp_path_factory.mktemp("starter")
    env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url}
    with LiveStack(STARTER, env, folder / "state", host=host) as stack:
        yield Starter(stack, folder)


def test_codex_with_starter_template_without_search_service_answers(plain_starter: Starter, upstream: Upstream) -> None:
    upstream.script(NAME, SAID)
    assert answers(plain_starter.codex("Say hello.")) == ["Hello from the model."]
    assert not {name for name in offered(chat(upstream)) if "search" in name}


def test_codex_with_full_access_and_without_search_service_answers(plain_starter: Starter, upstream: Upstream) -> None:
    upstream.script(NAME, SAID)
    assert answers(plain_starter.codex(*FULL_ACCESS, "Say hello.")) == ["Hello from the model."]
    assert not {name for name in offered(chat(upstream)) if "search" in name}
    log = plain_starter.stack.log.read_text(errors="replace")
    assert "omitted a tool of requests that this stack has not: type web_search" in log


def texts(request: Json) -> list[str]:
    """Return the texts of a chat request's messages."""
    return [str(message["content"]) for message in request["messages"]]


@pytest.mark.parametrize("config", [THREE_LINES, OVER_HTTP], ids=["websocket", "http"])
def test_codex_sub_agent_gets_its_task_and_reports(
    plain_starter: Starter, upstream: Upstream, catalog: str, config: str
) -> None:
    task = {"task_name": "worker", "message": "Count the otters in the pond.", "fork_turns": "none"}
    spawn = reply(tool_call(0, "c1", "collaboration__spawn_agent", json.dumps(task)))
    wait = reply(tool_call(0, "c2", "collaboration__wait_agent", '{"timeout_ms": 60000}'))
    # The parent waits while its agent answers: either may ask first.
    upstream.script("code", [spawn, wait, reply(text("All done."))])
    upstream.script("code", reply(text("Four otters.")), about="to agent '/root/worker'")
    finished = plain_starter.codex("-m", CODE, "Ask an agent.", config=config, catalog=catalog)
    assert finished.code == 0, f"{finished.out}\n{finished.errors}"
    requests = [each.body for each in upstream.requests("code")]
    [task_text] = {each for request in requests for each in texts(request) if "to agent '/root/worker'" in each}
    assert "[Message from agent '/root' to agent '/root/worker']" in task_text
    assert task_text.endswith("Count the otters in the pond.")
    [report] = [each for each in texts(requests[-1]) if "[Message from agent '/root/worker' to agent '/root']" in each]
    assert "Four otters." in report


def test_codex_thread_is_compacted_by_the_server_and_resumed(
    plain_starter: Starter, upstream: Upstream, catalog: str
) -> None:
    usage = {"prompt_tokens": 90_000, "completion_tokens": 5, "total_tokens": 90_005}
    run_code = reply(tool_call(0, "c1", "functions__exec", json.dumps({"input": "text('1')"})), usage=usage)
    summary = reply(text("Summary: canary-2718."))
    upstream.script("code", [run_code, summary, reply(text("Done.")), reply(text("As before."))])
    limit = ("-c", "model_auto_compact_token_limit=20000", "-m", CODE)
    assert answers(plain_starter.codex(*limit, "Begin.", catalog=catalog)) == ["Done."]
    requests = [each.body for each in upstream.requests("code")]
    assert "write a summary of this conversation" in texts(requests[1])[-1]
    assert any("canary-2718" in each for each in texts(requests[2]))
    finished = plain_starter.codex("resume", "--last", *limit, "Go on.", catalog=catalog)
    assert answers(finished) == ["As before."]
    last = texts(upstream.requests("code")[-1].body)
    assert any("canary-2718" in each for each in last)
    assert last[-1] == "Go on."


def test_codex_with_starter_template_and_ddgs_searches_the_web(
    host: Host, stack_env: dict[str, str], upstream: Upstream, tmp_path: Path
) -> None:
    server, form = ENGINES["duckduckgo"]
    certificates = Certificates.create_in(tmp_path, [server])

    def answer(request: ReceivedRequest) -> Answer:
        return Answer(form("", FOUND)) if request.headers["host"] == server else Answer(status=404)

    with Web(intercepts=certificates.of_server()) as engines:
        engines.answer_all = answer
        outside = {"HTTPS_PROXY": engines.url(""), "SSL_CERT_FILE": certificates.path("ca.pem")}
        env = {**stack_env, **outside, "INFERENCE_URL": upstream.base_url, "WEB_SEARCH": "ddgs"}
        with LiveStack(STARTER, env, tmp_path / "state", host=host) as stack:
            search = reply(tool_call(0, "c1", "web_search", '{"queries": ["how otters sleep"]}'))
            upstream.script(NAME, [search, reply(text("Hand in hand【1】."))])
            finished = Starter(stack, tmp_path).codex(*FULL_ACCESS, "How do otters sleep?")
    assert answers(finished) == ["Hand in hand ([otters.example](https://otters.example/))."]
    assert "Otters sleep hand in hand." in last_output(upstream)
    assert any(b"how+otters+sleep" in request.body for request in engines.seen)
