"""Every code block of README.md and docs/*.md, run as it stands there against one live stack.

The stack's configuration is the starter template with the documented YAML blocks put in. What stands for an address of
the reader's is replaced, and nothing else: see `replacements`. A block that is not run is named in NOT_RUN, with the reason.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import yaml
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from llama_stack_openai_chat.config import OpenAIChatConfig
from llama_stack_responses.config import ResponsesConfig
from tests.support.authority import Authority
from tests.support.clients import installed
from tests.support.documented import check_entry, provider_ids, put_in
from tests.support.mcp_server import McpServers
from tests.support.process import GRACE, Child
from tests.support.search import searxng
from tests.support.snippets import Block, blocks, substituted
from tests.support.stack import REPOSITORY, STARTER, Host, LiveStack
from tests.support.upstream import Reply, Upstream, UpstreamProcess, reasoning, reply, text, tool_call
from tests.support.variants import open_this_machine, variant
from tests.support.waiting import wait_until
from tests.support.web import Answer, Asked, Web

pytestmark = pytest.mark.live

BLOCKS: Final = blocks()
SAID: Final = reply(text("It ", "snows."))
OTTERS: Final = "Otters sleep hand in hand."
PATCH: Final = "--- a.py\\n+++ a.py\\n"
SEARCH: Final = reply(tool_call(0, "c1", "web_search", '{"queries": ["otters asleep"]}'))
OTTERS_SAID: Final = reply(text("Hand in hand 【1】."))


@dataclass(frozen=True, slots=True)
class Program:
    """How a program of the documentation is run, and what it has to print.

    Attributes:
        replies: what the model answers.
        prints: all of these.
        client: the environment in `.clients`, or that of the tests.
        held_until: the model goes on when the program has printed this.
        model: the name of the model in the block.
    """

    replies: tuple[Reply, ...]
    prints: tuple[str, ...]
    client: str | None = None
    held_until: str | None = None
    model: str = "NAME"


PROGRAMS: Final = {
    "README.md, Two commands, python": Program((SAID, reply(text("Ada."))), ("Ada.",), model="YOUR-MODEL"),
    "docs/api.md, Conversations, python": Program(
        (SAID,), ("developer Be brief.", "user Hi!", "assistant It snows.", "user And?")
    ),
    "docs/api.md, WebSocket, python": Program((SAID, reply(text("Ada."))), ("Ada.",)),
    "docs/api.md, Steering, python": Program(
        (reply(reasoning("Oslo", "?"), text("never"), hold=2, end="hang"), reply(text("It rains."))),
        ("accepted: steer_", "It rains."),
        held_until="accepted",
    ),
    "docs/clients.md, The hosts' own clients, python": Program((SAID,), ("It snows.",), "llama-stack-client"),
    "docs/clients.md, OpenAI Agents SDK, python": Program((SAID,), ("It snows.",), "agents"),
    "docs/clients.md, LangChain, python": Program((SAID,), ("It snows.",), "langchain"),
    "docs/clients.md, pydantic-ai, python": Program((SAID,), ("It snows.",), "pydantic-ai"),
    "docs/clients.md, Vercel AI SDK, js": Program((SAID,), ("It snows.",), "vercel"),
    "docs/clients.md, Vercel AI SDK, js 2": Program((SAID,), ("It snows.",), "vercel"),
    "docs/clients.md, OpenAI SDK for Node, js": Program((SAID,), ("It snows.",), "openai-node"),
    "docs/tools.md, Tools that the client runs, python": Program(
        (reply(tool_call(0, "c1", "patch", f'{{"input": "{PATCH}"}}')),), ("custom_tool_call --- a.py",)
    ),
    "docs/tools.md, web_search, python": Program(
        (SEARCH, OTTERS_SAID),
        ("Hand in hand ([en.wikipedia.org](https://en.wikipedia.org/wiki/Otter)).", "AnnotationURLCitation("),
    ),
    "docs/tools.md, file_search, python": Program(
        (
            reply(tool_call(0, "c1", "file_search", '{"queries": ["otters sleep"]}')),
            reply(text("Hand in hand 【F1】.")),
        ),
        ("AnnotationFileCitation(", "filename='otters.txt'"),
    ),
    "docs/tools.md, code_interpreter, python": Program(
        (reply(tool_call(0, "c1", "python", '{"code": "print(500 + 41)"}')), reply(text("541."))),
        ("print(500 + 41) [", "541\\n", "541."),
    ),
    "docs/tools.md, mcp, python": Program(
        (reply(tool_call(0, "c1", "deepwiki__echo", '{"text": "sessions"}')), SAID),
        ("""[('echo', '{"text": "sessions"}')]""", "It snows."),
    ),
}
CODEX: Final = "docs/clients.md, Codex CLI"
THREE_LINES: Final = f"{CODEX}, toml"
OF_CODEX: Final = (f"{CODEX}, toml 2", f"{CODEX}, python", f"{CODEX}, toml 3")
IN_THE_STACK: Final = (
    "README.md, In a stack that you have, yaml",
    "docs/configuration.md, Configuration, yaml",
    "docs/configuration.md, A model's tokenizer, yaml",
    "docs/configuration.md, Moderation, yaml",
    "docs/configuration.md, Moderation, yaml 2",
    "docs/gpt-oss.md, When one GPU is not enough, yaml",
    "docs/tools.md, Tools that a stack does not have, yaml",
    "docs/tools.md, web_search, yaml",
    "docs/tools.md, web_search, yaml 2",
    "docs/tools.md, file_search, yaml",
    "docs/tools.md, code_interpreter, yaml",
)
OF_LLAMA_STACK: Final = "docs/configuration.md, Moderation, yaml 2"
"""OGX has no Safety API."""
POSTGRES: Final = "docs/configuration.md, Stores, yaml"
PRIVATE_TLS: Final = "docs/configuration.md, The model server, yaml"
BUILT: Final = (POSTGRES, PRIVATE_TLS)
"""Their configuration objects are built: a store and a model server of one stack are taken already."""
NOT_RUN: Final = {
    "README.md, Two commands, console": "tests/demo runs `make demo`; `make serve` does not end",
    "README.md, Two commands, console 2": "`make serve` does not end",
    "README.md, In a stack that you have, console": "installs a host: tests/wheels/try_wheels.py does",
    "README.md, Tests, console": "these tests",
    "docs/architecture.md, The path of a request, text": "a picture",
    "docs/gpt-oss.md, Start it, console": "installs torch and starts on a checkpoint: tests/gpt_oss/test_stack.py does",
    "docs/gpt-oss.md, Start it, console 2": "the same on OGX: tests/gpt_oss/test_ogx.py does",
    "docs/gpt-oss.md, The engine, console": "needs an engine: tests/gpt_oss/test_process.py has one",
    "docs/operations.md, Traces and metrics, sh": "a server that does not end; the stack of all live tests runs like this",
    "docs/operations.md, What holds the server up, text": "a line of the log",
    "docs/performance.md, Performance, console": "measures for ten minutes",
    "docs/performance.md, Stores, console": "measures for seven minutes",
    "docs/performance.md, Waiting, console": "measures for two minutes",
    "docs/performance.md, Servers that die, console": "measures for four minutes; the durability tests run the short form",
    "docs/scaling.md, Several servers, console": "servers that do not end: test_scale_out.py starts them",
}
SHELL: Final = ("console", "sh", "bash")


def test_each_block_is_run_or_has_a_reason() -> None:
    listed = [*PROGRAMS, THREE_LINES, *OF_CODEX, *IN_THE_STACK, *BUILT, *NOT_RUN]
    assert sorted(listed) == sorted(BLOCKS)


def test_each_fence_is_that_of_a_block() -> None:
    pages = [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]
    fences = [
        line for page in pages for line in page.read_text().splitlines() if line.lstrip().startswith(("```", "~~~"))
    ]
    assert len(fences) == 2 * len(BLOCKS)


# -- the stack -----------------------------------------------------------------


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reader's home folder, with the files that they are said to have."""
    folder = tmp_path_factory.mktemp("home")
    tokenizer = folder / "models" / "qwen3" / "tokenizer.json"
    tokenizer.parent.mkdir(parents=True)
    Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]")).save(str(tokenizer))
    Authority(folder / "authority")
    return folder


@pytest.fixture(scope="module")
def replacements(home: Path, upstream_process: UpstreamProcess, internet: Web, mcp: McpServers) -> dict[str, str]:
    """What documented addresses and paths of the reader's are here; the stack's own is added once it runs."""
    model_server = upstream_process.client.url
    return {
        "http://localhost:8080": model_server,
        "http://vllm.example:8000": model_server,
        "https://models.internal": model_server,
        "https://moderator.internal": model_server,
        "http://localhost:8888": internet.url("/searxng"),
        "https://mcp.deepwiki.com/mcp": mcp.url(),
        "/etc/ssl/internal-ca.pem": str(home / "authority" / "authority.pem"),
        "/home/YOU": str(home),
    }


def put_in_the_stack(host: Host) -> list[str]:
    """The blocks that this host takes."""
    return [name for name in IN_THE_STACK if (host, name) != ("ogx", OF_LLAMA_STACK)]


@pytest.fixture(scope="module")
def documented(
    host: Host,
    stack_env: dict[str, str],
    upstream_process: UpstreamProcess,
    replacements: dict[str, str],
    home: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LiveStack]:
    """The starter template with all that the documentation puts in; only here, it may reach this machine."""

    def change(config: dict[str, Any]) -> None:
        for name in put_in_the_stack(host):
            put_in(config, substituted(BLOCKS[name].text, replacements))
        open_this_machine(config)

    vocabularies = Path(sys.prefix).glob("lib/python*/site-packages/llama_index/core/_static/tiktoken_cache")
    env = {
        **stack_env,
        "HOME": str(home),
        "INFERENCE_URL": upstream_process.client.base_url,
        "MODERATOR_KEY": "key-of-the-moderator",
        "TIKTOKEN_CACHE_DIR": str(next(vocabularies)),
    }
    config = variant(STARTER, tmp_path_factory.mktemp("config") / "config.yaml", change)
    with LiveStack(config, env, tmp_path_factory.mktemp("documented"), host=host) as live:
        yield live


def test_a_stack_starts_with_what_the_documentation_puts_in(documented: LiveStack, host: Host) -> None:
    listed = httpx.get(f"{documented.base_url}/v1/providers", timeout=60, trust_env=False).json()["data"]
    expected = provider_ids(BLOCKS[name].text for name in put_in_the_stack(host))
    assert expected <= {each["provider_id"] for each in listed}


def test_the_store_block_is_a_store() -> None:
    config = ResponsesConfig.model_validate(yaml.safe_load(BLOCKS[POSTGRES].text))
    assert config.store.type == "postgres"


def test_the_model_server_block_is_a_provider(replacements: dict[str, str]) -> None:
    said = yaml.safe_load(substituted(BLOCKS[PRIVATE_TLS].text, replacements))
    [entry] = said["providers"]["inference"]
    check_entry(entry)
    config = OpenAIChatConfig.model_validate({**entry["config"], "api_key": "sk-1"})
    assert config.network.tls.verify == Path(replacements["/etc/ssl/internal-ca.pem"])


# -- programs ------------------------------------------------------------------


@pytest.fixture
def wikipedia(web: Web) -> None:
    """SearXNG finds one page."""

    def found(asked: Asked) -> Answer:
        page = ("https://en.wikipedia.org/wiki/Otter", "Otter", OTTERS)
        return Answer(httpx.Response(200, json=searxng(asked.query["q"], [page])).content)

    web.answers["/searxng/search"] = found


def environment(home: Path, *folders: Path) -> dict[str, str]:
    """What a program gets of this process's environment, with programs in these folders first."""
    path = os.pathsep.join([*map(str, folders), os.environ["PATH"]])
    return {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", "NO_PROXY": "*", "PYTHONUNBUFFERED": "1"}


def command(block: Block, client: str | None, folder: Path) -> list[str]:
    """What runs a program that lies in `folder`, in the environment of its client."""
    if block.language == "js":
        (folder / "node_modules").symlink_to(installed(str(client)) / "node_modules")
        return ["node", "snippet.mjs"]
    return [sys.executable if client is None else str(installed(client) / "bin" / "python"), "snippet.py"]


def run_block(block: Block, client: str | None, said: str, folder: Path, home: Path) -> Child:
    """Starts a program in `folder`, where the file is that it reads."""
    (folder / "otters.txt").write_text(OTTERS)
    started = command(block, client, folder)
    (folder / started[-1]).write_text(said)
    programs = [installed("node") / "bin"] if block.language == "js" else []
    programs += [codex_program().parent] if block.name in OF_CODEX else []
    return Child(started, log=folder / "output.txt", env=environment(home, *programs), cwd=folder)


def output_of(program: Child) -> str:
    """All that it printed, once it has ended."""
    wait_until(lambda: program.returncode is not None, 240)
    said = program.log.read_text(errors="replace")
    assert program.returncode == 0, said
    return said


@pytest.mark.usefixtures("wikipedia")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs_as_it_stands(
    documented: LiveStack, upstream: Upstream, replacements: dict[str, str], home: Path, tmp_path: Path, name: str
) -> None:
    block, program = BLOCKS[name], PROGRAMS[name]
    upstream.script(program.model, program.replies)
    here = {**replacements, "http://localhost:8321": documented.base_url}
    child = run_block(block, program.client, substituted(block.text, here), tmp_path, home)
    try:
        if held := program.held_until:
            wait_until(lambda: held in child.log.read_text() or child.returncode is not None)
            upstream.release(program.model)
        printed = output_of(child)
    finally:
        child.stop(GRACE)
    missing = [each for each in program.prints if each not in printed]
    assert not missing, printed


def test_codex_takes_its_blocks(
    documented: LiveStack, upstream: Upstream, replacements: dict[str, str], home: Path, tmp_path: Path
) -> None:
    """In three lines, as a provider without the entry for its model, and with it."""
    upstream.script("NAME", SAID)
    here = {**replacements, "http://localhost:8321": documented.base_url}
    three, first, pattern, catalog = (substituted(BLOCKS[name].text, here) for name in (THREE_LINES, *OF_CODEX))
    folder = home / ".codex"
    folder.mkdir()
    offered = []
    for config in (three, first, catalog + first):
        (folder / "config.toml").write_text(config)
        assert "It snows." in codex(home, tmp_path)
        offered.append({tool["function"]["name"] for tool in upstream.requests("NAME")[-1].body["tools"]})
        if config == first:
            output_of(run_block(BLOCKS[OF_CODEX[1]], None, pattern, tmp_path, home))
    assert ["apply_patch" in names for names in offered] == [False, False, True]


def codex_program() -> Path:
    """The program, which npm installed."""
    return installed("codex") / "node_modules" / ".bin" / "codex"


def codex(home: Path, folder: Path) -> str:
    """What it says to the user."""
    found = subprocess.run(
        [str(codex_program()), "exec", "--skip-git-repo-check", "Say hello."],
        cwd=folder,
        env={**environment(home, installed("node") / "bin"), "CODEX_API_KEY": "none"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert found.returncode == 0, f"{found.stdout}\n{found.stderr}"
    return found.stdout


# -- commands ------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in NOT_RUN if BLOCKS[name].language in SHELL])
def test_commands_that_are_not_run_are_commands(name: str) -> None:
    """What bash can read, with targets of the Makefile and templates that there are."""
    commands = BLOCKS[name].shell
    read = subprocess.run(["bash", "-n"], input=commands, capture_output=True, text=True, check=False)
    assert (read.returncode, read.stderr) == (0, "")
    targets = {line.partition(":")[0] for line in (REPOSITORY / "Makefile").read_text().splitlines()}
    for line in commands.splitlines():
        words = line.partition("#")[0].split()
        if "make" in words:
            assert words[words.index("make") + 1] in targets
        if "init" in words:
            assert (REPOSITORY / "templates" / words[words.index("init") + 1] / "config.yaml").exists()
