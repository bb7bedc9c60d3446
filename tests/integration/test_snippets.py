"""Every code block of README.md, CONTRIBUTING.md, the READMEs of providers/ and docs/, run against one live stack.

The stack's configuration is the starter template with the documented YAML blocks. Only placeholder addresses are
replaced (see `replacements`). `NOT_RUN` lists the blocks that are not run, with the reasons.
"""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import yaml
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from llama_stack_openai_chat.config import OpenAIChatConfig
from llama_stack_responses.config import ResponsesConfig
from tests.support.certificates import Certificates
from tests.support.clients import installed
from tests.support.documented import check_entry, provider_ids, put_in
from tests.support.forks import Forks
from tests.support.image_server import ImageServer
from tests.support.mcp_server import PIXEL, McpServers
from tests.support.pdf import pdf
from tests.support.process import GRACE, Child
from tests.support.search import searxng
from tests.support.snippet_programs import (
    BUILT,
    CLUSTER,
    CODEX_BY_PROVIDER,
    CODEX_BY_URL,
    COMMANDS,
    INSTALLING,
    MAKE,
    NOT_RUN,
    OF_LLAMA_STACK,
    POSTGRES,
    PRIVATE_TLS,
    PROGRAMS,
    SHOWN,
    SNOW,
)
from tests.support.snippets import Block, blocks, documents, substituted
from tests.support.stack import REPOSITORY, STARTER, Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess
from tests.support.variants import open_this_machine, variant
from tests.support.waiting import wait_until
from tests.support.web import Answer, ReceivedRequest, Web

pytestmark = [pytest.mark.live, pytest.mark.both_hosts]

BLOCKS: Final = blocks()
OTTERS: Final = "Otters sleep hand in hand."
SHELL: Final = ("console", "sh", "bash")
MAKEFILE: Final = (REPOSITORY / "Makefile").read_text()
OURS: Final = ("tests/", "templates/", "benchmarks/", "./providers/")
"""Beginnings of the paths of this repository in commands."""
RUNNER: Final = REPOSITORY / "tests" / "support" / "python_program.py"
IMPORTS: Final = ("openai", "openai.resources.responses", "openai.types.responses")
"""What a Python program imports: each would take a second of processor time for it, unless it is forked."""
FILE_OF_DEPLOYMENT: Final = re.compile(r"[A-Za-z]*file|\w+\.(?:yaml|service)")


LISTED: Final = [
    *PROGRAMS,
    CODEX_BY_URL,
    *CODEX_BY_PROVIDER,
    *BUILT,
    *COMMANDS,
    *MAKE,
    *INSTALLING,
    *SHOWN,
    *NOT_RUN,
]
"""Blocks that are run in another way than as a part of the stack's configuration, or for a reason not at all."""
IN_THE_STACK: Final = [name for name, block in BLOCKS.items() if block.language == "yaml" and name not in LISTED]
"""The parts of the configuration with which the stack for all programs starts."""


def test_every_code_block_is_run_or_excluded_with_a_reason() -> None:
    assert sorted([*LISTED, *IN_THE_STACK]) == sorted(BLOCKS)


def test_every_code_fence_belongs_to_a_block() -> None:
    fences = [
        line
        for page in documents()
        for line in page.read_text().splitlines()
        if line.lstrip().startswith(("```", "~~~"))
    ]
    assert len(fences) == 2 * len(BLOCKS)


# -- the stack -----------------------------------------------------------------


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home folder, with the files that the documentation refers to."""
    folder = tmp_path_factory.mktemp("home")
    tokenizer = folder / "models" / "qwen3" / "tokenizer.json"
    tokenizer.parent.mkdir(parents=True)
    Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]")).save(str(tokenizer))
    Certificates.create_in(folder / "authority")
    return folder


@pytest.fixture(scope="module")
def replacements(home: Path, upstream_process: UpstreamProcess, internet: Web, mcp: McpServers) -> dict[str, str]:
    """The replacements of documented addresses and paths. The stack's address is added once it runs."""
    model_server = upstream_process.client.url
    return {
        "http://localhost:8000": model_server,
        "http://localhost:8080": model_server,
        "https://models.internal": model_server,
        "https://moderator.internal": model_server,
        "http://localhost:1234": internet.url("/images"),
        "http://localhost:8888": internet.url("/searxng"),
        "https://mcp.deepwiki.com/mcp": mcp.url(),
        "/etc/ssl/internal-ca.pem": str(home / "authority" / "ca.pem"),
        "/home/YOU": str(home),
    }


def put_in_the_stack(host: Host) -> list[str]:
    """Return the names of the blocks for this host."""
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
    """The starter template with all documented blocks. For the test, it may also reach this machine."""

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


@pytest.mark.extended
def test_stack_with_all_documented_blocks_has_their_providers(documented: LiveStack, host: Host) -> None:
    listed = httpx.get(f"{documented.base_url}/v1/providers", timeout=60, trust_env=False, verify=False).json()["data"]
    expected = provider_ids(BLOCKS[name].text for name in put_in_the_stack(host))
    assert expected <= {each["provider_id"] for each in listed}


@pytest.mark.parametrize(("block", "kind"), [(POSTGRES, "postgres"), (CLUSTER, "cluster")])
def test_documented_store_block_is_valid(block: str, kind: str) -> None:
    config = ResponsesConfig.model_validate(yaml.safe_load(BLOCKS[block].text))
    assert config.store.type == kind


def test_documented_model_server_block_is_valid(replacements: dict[str, str]) -> None:
    said = yaml.safe_load(substituted(BLOCKS[PRIVATE_TLS].text, replacements))
    [entry] = said["providers"]["inference"]
    check_entry(entry)
    config = OpenAIChatConfig.model_validate({**entry["config"], "api_key": "sk-1"})
    assert config.network.tls.verify == Path(replacements["/etc/ssl/internal-ca.pem"])


def test_documented_entry_of_gpt_oss_is_that_of_its_template() -> None:
    block = BLOCKS["providers/gpt_oss/README.md, llama-stack-gpt-oss, yaml"]
    [entry] = yaml.safe_load(block.text)["providers"]["inference"]
    template = yaml.safe_load((REPOSITORY / "templates" / "gpt-oss" / "config.yaml").read_text())
    [expected] = template["providers"]["inference"]
    check_entry(entry)
    assert {**entry, "config": {}} == {**expected, "config": {}}
    assert entry["config"].keys() <= expected["config"].keys()


# -- programs ------------------------------------------------------------------


@pytest.fixture
def wikipedia(web: Web) -> None:
    """Script SearXNG to find one page."""

    def found(request: ReceivedRequest) -> Answer:
        page = ("https://en.wikipedia.org/wiki/Otter", "Otter", OTTERS)
        return Answer(httpx.Response(200, json=searxng(request.query["q"], [page])).content)

    web.answers["/searxng/search"] = found


@pytest.fixture
def image_server(web: Web) -> ImageServer:
    """An image server that generates images."""
    return ImageServer(web)


def environment(home: Path, *folders: Path) -> dict[str, str]:
    """Return the environment of a program, with these folders first on its path."""
    path = os.pathsep.join([*map(str, folders), os.environ["PATH"]])
    return {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", "NO_PROXY": "*", "PYTHONUNBUFFERED": "1"}


def command(block: Block, client: str | None, folder: Path) -> list[str]:
    """Return the command that runs the program in `folder` in the environment of its client."""
    if block.language == "js":
        (folder / "node_modules").symlink_to(installed(str(client)) / "node_modules")
        return ["node", "snippet.mjs"]
    return [str(RUNNER) if client is None else str(installed(client) / "bin" / "python"), "snippet.py"]


@pytest.fixture(scope="module")
def python_programs(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Processes with the imports of a program in Python."""
    with Forks(RUNNER, IMPORTS, environment(home), tmp_path_factory.mktemp("programs") / "log") as forks:
        yield forks


def run_block(
    block: Block, client: str | None, expected: str, folder: Path, home: Path, python_programs: Forks
) -> Child:
    """Start a program in `folder`, with the files that it reads."""
    (folder / "otters.txt").write_text(OTTERS)
    (folder / "chart.png").write_bytes(PIXEL)
    (folder / "report.pdf").write_bytes(pdf("Snow is white."))
    started = command(block, client, folder)
    (folder / started[-1]).write_text(expected)
    programs = [installed("node") / "bin"] if block.language == "js" else []
    programs += [codex_program().parent] if block.name in CODEX_BY_PROVIDER else []
    log, env = folder / "output.txt", environment(home, *programs)
    if started[0] != str(RUNNER):
        return Child(started, log=log, env=env, cwd=folder)
    forked = python_programs.start(started, log=log, env=env, cwd=folder)
    assert forked, python_programs.refusals
    return forked


def output_of(program: Child) -> str:
    """Wait until a program has ended, check its exit status, and return its output."""
    wait_until(lambda: program.returncode is not None, 240)
    output = program.log.read_text(errors="replace")
    assert program.returncode == 0, output
    return output


@pytest.mark.relatives
@pytest.mark.one_host  # programs of clients; `test_client_hosts.py` has those of the hosts
@pytest.mark.usefixtures("wikipedia", "image_server")
@pytest.mark.parametrize(
    "name",
    [
        # Clients that import much, as in `test_client_*.py`, and code that draws, as in `test_code_interpreter.py`.
        pytest.param(name, marks=() if program.client is None and "Figures" not in name else pytest.mark.extended)
        for name, program in PROGRAMS.items()
    ],
)
def test_documented_program_runs_unchanged(
    documented: LiveStack,
    upstream: Upstream,
    replacements: dict[str, str],
    home: Path,
    python_programs: Forks,
    tmp_path: Path,
    name: str,
) -> None:
    block, program = BLOCKS[name], PROGRAMS[name]
    upstream.script(program.model, program.replies)
    here = {**replacements, "http://localhost:8321": documented.base_url}
    child = run_block(block, program.client, substituted(block.text, here), tmp_path, home, python_programs)
    try:
        if held := program.held_until:
            wait_until(lambda: held in child.log.read_text() or child.returncode is not None)
            upstream.release(program.model)
        printed = output_of(child)
    finally:
        child.stop(GRACE)
    missing = [each for each in program.prints if each not in printed]
    assert not missing, printed


@pytest.mark.one_host  # a client too
def test_documented_codex_configurations_work(
    documented: LiveStack,
    upstream: Upstream,
    replacements: dict[str, str],
    home: Path,
    python_programs: Forks,
    tmp_path: Path,
) -> None:
    """The configuration in three lines, and the provider without and with the entry for its model."""
    upstream.script("NAME", SNOW)
    here = {**replacements, "http://localhost:8321": documented.base_url}
    three, first, pattern, catalog = (
        substituted(BLOCKS[name].text, here) for name in (CODEX_BY_URL, *CODEX_BY_PROVIDER)
    )
    folder = home / ".codex"
    folder.mkdir()
    offered = []
    for config in (three, first, catalog + first):
        (folder / "config.toml").write_text(config)
        assert "It snows." in codex(home, tmp_path)
        offered.append({tool["function"]["name"] for tool in upstream.requests("NAME")[-1].body["tools"]})
        if config == first:
            output_of(run_block(BLOCKS[CODEX_BY_PROVIDER[1]], None, pattern, tmp_path, home, python_programs))
    assert ["apply_patch" in names for names in offered] == [False, False, True]


def codex_program() -> Path:
    """Return the path of the installed program."""
    return installed("codex") / "node_modules" / ".bin" / "codex"


def codex(home: Path, folder: Path) -> str:
    """Run Codex and return its output."""
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
def test_documented_commands_that_are_not_run_are_valid(name: str) -> None:
    """They are valid bash, and what they name of this repository exists: targets, templates, files, pinned hosts."""
    commands = BLOCKS[name].shell
    read = subprocess.run(["bash", "-n"], input=commands, capture_output=True, text=True, check=False)
    assert (read.returncode, read.stderr) == (0, "")
    targets = {line.partition(":")[0] for line in MAKEFILE.splitlines()}
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for line in commands.splitlines():
        words = line.partition("#")[0].split()
        if "make" in words:
            assert words[words.index("make") + 1] in targets
        assert all((REPOSITORY / word).exists() for word in words if word.startswith(OURS))
        if "init" in words:
            assert (REPOSITORY / "templates" / words[words.index("init") + 1]).is_dir()
        if line.startswith("pip install . "):
            assert [word for word in words if word.startswith(("llama-stack==", "ogx=="))] in (
                extras["llama-stack"][:1],
                extras["ogx"][:1],
            )


def test_documented_deployment_begins_with_the_files_that_its_commands_name(tmp_path: Path) -> None:
    first, *others = BLOCKS["docs/guides/deploying.md, Deploying, console"].shell.splitlines()
    env = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    subprocess.run(["bash", "-ec", first], cwd=tmp_path, env=env, capture_output=True, check=True)
    named = {word for line in others for word in shlex.split(line, comments=True) if FILE_OF_DEPLOYMENT.fullmatch(word)}
    assert named == {"Containerfile", "kubernetes.yaml", "responses.service"}
    written = {path.name for path in (tmp_path / "DIR").iterdir()}
    assert named | {"compose.yaml", "config.yaml"} <= written
