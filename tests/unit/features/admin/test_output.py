"""How the commands begin and end: pipes, Ctrl-C, wrong arguments and absent stores."""

import asyncio
import json
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, get_args

import pytest
from openai.types.responses import ResponseStatus

from llama_stack_responses.cli import main
from llama_stack_responses.commands.tables import columns_of, print_rows
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.features.admin import store_commands
from llama_stack_responses.store.records import Condition, Op, Put
from llama_stack_responses.store.sqlite import SqliteRecords
from tests.support.forks import Forks
from tests.support.golden_store import GoldenStore, load, newest_file
from tests.support.process import free_port
from tests.support.variants import Json, responses_config, variant

ROOT: Final = Path(__file__).parents[4]
STARTER: Final = str(ROOT / "templates" / "starter" / "config.yaml")
CLI: Final = "import sys; from llama_stack_responses.cli import main; sys.exit(main())"

# The hosts read a deprecated field of their own.
pytestmark = pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")


def by_turns(*commands: str) -> Iterator[Any]:
    """Return commands that end as another one, which each run has: each is a process of its own."""
    return (pytest.param(each, marks=pytest.mark.extended) for each in commands)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state of a server that has generated some responses."""
    monkeypatch.setenv("STATE_DIR", str(tmp_path / "state"))
    load(GoldenStore.read(newest_file("sqlite.json.xz")), None, tmp_path / "state")
    for host_table in ("host-kv.db", "host-sql.db"):
        (tmp_path / "state" / host_table).touch()
    return tmp_path / "state"


@pytest.mark.parametrize("command", [*by_turns("list", "list --json", "tail --every=0.1")])
def test_reader_that_has_enough_ends_a_command_silently(command: str, state: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        [sys.executable, "-c", CLI, *command.split(), "--config", STARTER],
        env={**os.environ, "STATE_DIR": str(state), "PYTHONPATH": str(ROOT)},
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
        timeout=240,
    )
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, b"")


@pytest.fixture(scope="module")
def commands_of_the_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Processes of the command that have imported the host: in this one it would keep its backends."""
    folder = tmp_path_factory.mktemp("commands")
    with Forks.of_commands("llama_stack", os.environ | {"HOME": str(folder)}, folder / "log") as forks:
        yield forks


def forked(forks: Forks, folder: Path, *words: str, **environment: str) -> tuple[int, str]:
    """Run a command; return how it ends and what it prints."""
    ended = forks.run(*words, folder=folder, env=forks.env | environment)
    return ended.returncode, ended.stdout + ended.stderr


def piped(command: str, state: Path, ending: str, **environment: str) -> tuple[int, str, str]:
    """Run a command in a shell with this redirection; return how it ends and what it prints."""
    program = shlex.join([sys.executable, "-c", CLI, *command.split()])
    ended = subprocess.run(
        ["bash", "-c", f"{program} {ending}"],
        env={**os.environ, "STATE_DIR": str(state), "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize(
    "command", ["list", "init", *by_turns("list --json", "show {id}", "export --owner=", "tail --every=0.1")]
)
def test_output_to_a_full_disk_is_one_sentence(command: str, state: Path, tmp_path: Path) -> None:
    if command == "init":
        words = f"init starter {tmp_path / 'new'}"
    else:
        found = newest(state) if "{id}" in command else ""
        words = f"{command.format(id=found)} --config {STARTER}"
    expected = "llama-stack-responses: Cannot use the output: No space left on device.\n"
    assert piped(words, state, ">/dev/full") == (1, "", expected)


@pytest.mark.parametrize("command", [*by_turns("list", "stats")])
def test_command_without_an_output_ends_normally(command: str, state: Path) -> None:
    assert piped(f"{command} --config {STARTER}", state, ">&-") == (0, "", "")


@pytest.mark.extended
def test_letters_that_the_terminal_lacks_are_replaced(state: Path) -> None:
    named = newest(state, "--model local/plain")
    code, out, errors = piped(f"chain {named} --config {STARTER}", state, "", PYTHONIOENCODING="ascii")
    assert (code, errors) == (0, "")
    assert "F??e ?" in out


def newest(state: Path, wanted: str = "") -> str:
    """Return the id of the newest wanted response."""
    return str(json.loads(piped(f"list --json --limit 1 --config {STARTER} {wanted}", state, "")[1])["id"])


INTERRUPTED: Final = """
import os, signal, sys
class Interrupting:
    @staticmethod
    def find_spec(name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting)
from llama_stack_responses.console import main
sys.exit(main())
"""
"""The program, interrupted where it imports a module."""


def interrupted(module: str, command: str, folder: Path) -> tuple[int, str, str]:
    """Run a command that is interrupted at this import; return how it ends and what it prints."""
    words = command.format(folder=folder, config=STARTER).split()
    if words[0] != "import":
        words += ["--config", STARTER]
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(module=module), *words],
        env={**os.environ, "STATE_DIR": str(folder / "state"), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize("module", ["llama_stack_responses.cli", "argparse", "importlib.metadata"])
def test_ctrl_c_before_the_command_is_known_ends_the_program_silently(module: str, tmp_path: Path) -> None:
    assert interrupted(module, "list", tmp_path) == (130, "", "")


@pytest.mark.parametrize("command", ["list", *by_turns("import {config}", "backup {folder}/backup")])
def test_ctrl_c_during_the_imports_of_a_command_ends_it_silently(command: str, state: Path, tmp_path: Path) -> None:
    """The import of pydantic, which loses a `KeyboardInterrupt` or makes another error of it."""
    assert interrupted("pydantic.main", command, tmp_path) == (130, "", "")


@pytest.mark.extended
def test_ctrl_c_ends_tail_silently(state: Path) -> None:
    command = [sys.executable, "-c", CLI.replace("cli", "console"), "tail", "--every=0.1", "--config", STARTER]
    env = {**os.environ, "STATE_DIR": str(state), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tail:
        assert tail.stdout
        tail.stdout.readline()
        tail.send_signal(signal.SIGINT)
        _, errors = tail.communicate(timeout=240)
    assert (tail.returncode, errors) == (130, "")


def test_ctrl_c_ends_a_command_silently(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stats(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store_commands, "stats", stats)
    assert main(["stats", "--config", STARTER]) == 128 + signal.SIGINT
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["list", "--limit", "0"],
        ["list", "--limit", "many"],
        ["tail", "--every", "0"],
        ["tail", "--every", "nan"],
        ["tail", "--every", "often"],
    ],
)
def test_argument_out_of_range_is_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "it is " in capsys.readouterr().err


def test_store_that_does_not_exist_is_an_error_and_not_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STATE_DIR", str(tmp_path / "other"))
    assert main(["list", "--config", STARTER]) == 1
    assert "There is no store" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


@pytest.mark.extended
@pytest.mark.day(4)
def test_store_of_the_host_that_does_not_exist_is_an_error_and_not_created(
    commands_of_the_host: Forks, tmp_path: Path
) -> None:
    def change(config: Json) -> None:
        responses_config(config)["store"] = {"type": "host"}

    config = variant(Path(STARTER), tmp_path / "config.yaml", change)
    for command in (["list"], ["stats"], ["backup", str(tmp_path / "backup")]):
        words = [*command, "--config", str(config)]
        ended = forked(commands_of_the_host, tmp_path, *words, STATE_DIR=str(tmp_path / "other"))
        said = f"There is no store {tmp_path}/other/host-kv.db: check STATE_DIR, and the user that runs the server.\n"
        assert ended == (1, f"llama-stack-responses: {said}")
    assert not (tmp_path / "other").exists()
    assert not (tmp_path / "backup").exists()


@pytest.mark.parametrize("command", ["list", "tail"])
def test_unknown_status_is_wrong_usage(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([command, "--status", "complete"])
    refused = capsys.readouterr().err
    assert "'complete'" in refused
    for each in get_args(ResponseStatus):
        assert each in refused.partition("choose from")[2]


def test_configuration_that_does_not_exist_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--config", str(tmp_path / "gone.yaml")]) == 2
    assert "gone.yaml: name the stack's configuration with --config.\n" in capsys.readouterr().err


NO_NAMES: Final = "is not a stack's configuration: it is not a YAML mapping."
UNREADABLE: Final = {
    "empty": ("", NO_NAMES),
    "list": ("- a\n", NO_NAMES),
    "variable": (
        Path(STARTER).read_text().replace("${env.STATE_DIR:=~/.llama-stack-responses}", "${env.NOPE}"),
        "takes NOPE from the environment, where it is not set or is empty.",
    ),
}
READING: Final = ("list --config", "stats --config", "import", "import --config")


@pytest.mark.extended
@pytest.mark.day(4)
@pytest.mark.parametrize("command", READING)
@pytest.mark.parametrize("unreadable", UNREADABLE)
def test_configuration_that_the_host_cannot_read_is_one_sentence(
    commands_of_the_host: Forks, command: str, unreadable: str, tmp_path: Path
) -> None:
    text, expected = UNREADABLE[unreadable]
    config = tmp_path / "config.yaml"
    config.write_text(text)
    ended = forked(commands_of_the_host, tmp_path, *command.split(), str(config))
    assert ended == (2, f"llama-stack-responses: {config} {expected}\n")


RIGHT: Final = '      fetch: {allowed_networks: "${env.ALLOWED_NETWORKS:=}"}\n'
KV: Final = "the provider 'inline::kv' under providers.responses"
WRONG: Final = {
    "setting": (
        RIGHT,
        "      fetch: {allowed_network: loopback, seconds: 0}\n      rounds: 3\n",
        "has 3 wrong settings:",
        "'fetch.allowed_network' of 'responses': there is no such setting here; did you mean 'allowed_networks'?",
        "'fetch.seconds' of 'responses': it must be greater than 0.",
        "'rounds' of 'responses': there is no such setting here; move it to 'limits.rounds'.",
    ),
    "level": (
        "\nproviders:\n",
        "\nfetch: {}\nallowed_networks: loopback\nproviders:\n",
        "has 2 wrong settings:",
        f"'fetch' is at a level where it is ignored: move it into the 'config' of {KV}.",
        f"'allowed_networks' is at a level where it is ignored: move it into the 'config' of {KV} as "
        "'fetch.allowed_networks'.",
    ),
    "entry": (
        "  - provider_id: responses\n",
        "  - provider_id: responses\n    fetch: {}\n",
        "has a wrong setting:",
        f"'fetch' is at a level where it is ignored: move it into the 'config' of {KV}.",
    ),
    "list": (
        "\nproviders:\n",
        "\nproviders:\n  fetch: {}\n",
        "has a wrong setting:",
        f"'providers.fetch': move it into the 'config' of {KV}.",
    ),
    "workers": (
        "${env.WORKERS:=1}",
        "${env.PROCESSES}",
        "has a wrong setting:",
        "'server.workers' (from PROCESSES in the environment): the number of server processes is expected here, from "
        "1 to 256.",
    ),
    "type": (
        "provider_type: inline::kv",
        "provider_type: inline::kw",
        "has a wrong setting:",
        "'providers.responses.0.provider_type': the module 'llama_stack_responses' has no provider type 'inline::kw'; "
        "did you mean 'inline::kv'?",
    ),
    "type of the host": (
        "provider_type: inline::localfs",
        "provider_type: inline::localf",
        "has a wrong setting:",
        "'providers.files.0.provider_type': the host has no provider type 'inline::localf'; did you mean "
        "'inline::localfs'?",
    ),
    "module": (
        "provider_type: inline::kv\n    module: llama_stack_responses\n",
        "provider_type: inline::kv\n    module: llama_stack_response\n",
        "has a wrong setting:",
        "'providers.responses.0.module': no provider is installed in the module 'llama_stack_response'; did you mean "
        "'llama_stack_responses'?",
    ),
    "apis": (
        "apis: [inference, responses,",
        "apis: [inference, respones,",
        "has a wrong setting:",
        "'apis.1': the host has no API 'respones'; did you mean 'responses'?",
    ),
    "id": (
        "  - provider_id: files\n",
        "  - provider_idd: files\n",
        "has a wrong setting:",
        "'providers.files.0.provider_id': this setting is missing.",
    ),
    "host": (
        "{backend: kv_default, namespace: registry}",
        "{backend: 3, namespace: registry}",
        "has a wrong setting:",
        "'storage.stores.metadata.backend': a text is expected here.",
    ),
}


@pytest.mark.extended
@pytest.mark.day(4)
@pytest.mark.parametrize(
    ("wrong", "command"),
    [
        *((wrong, "check") for wrong in WRONG),
        *(("level", each) for each in ("check --config", "import", "list --config")),
    ],
)
def test_all_wrong_settings_are_named_with_their_lines(
    commands_of_the_host: Forks, wrong: str, command: str, tmp_path: Path
) -> None:
    right, other, count, *sentences = WRONG[wrong]
    text, config = Path(STARTER).read_text(), tmp_path / "config.yaml"
    assert right in text
    config.write_text(text.replace(right, other))
    status, said = forked(commands_of_the_host, tmp_path, *command.split(), str(config), PROCESSES="abc")
    first, *lines = said.splitlines()
    assert (status, first) == (2, f"llama-stack-responses: {config} {count}")
    assert sorted(re.sub(r"^  line [1-9]\d*: ", "", line) for line in lines) == sorted(sentences)


@pytest.mark.extended
@pytest.mark.day(4)
def test_configuration_with_nothing_wrong_is_said_to_be_right(commands_of_the_host: Forks, tmp_path: Path) -> None:
    ended = forked(commands_of_the_host, tmp_path, "check", str(STARTER))
    assert ended == (0, f"Nothing is wrong in {STARTER}.\n")


@pytest.mark.extended
@pytest.mark.day(4)
def test_check_names_wrong_settings_of_providers_that_other_commands_do_not_need(
    commands_of_the_host: Forks, tmp_path: Path
) -> None:
    status, said = forked(commands_of_the_host, tmp_path, "check", str(STARTER), INFERENCE_URL="localhost")
    assert (status, "'base_url' of 'local' (from INFERENCE_URL in the environment): 'localhost' does" in said) == (
        2,
        True,
    )


def test_columns_of_wide_letters_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"a": "日本語", "b": "x"}, {"a": "e\u0301", "b": "y"}, {"a": "\U0001f600", "b": "z"}]
    print_rows(rows, {"a": "A", "b": "B"}, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert {columns_of(line) for line in lines} == {len("日本語") * 2 + len("  B")}


@pytest.mark.parametrize("kind", ["redis", "postgres"])
def test_backup_of_a_store_that_is_down_is_an_error(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    monkeypatch.setenv("REDIS_URL", f"redis://127.0.0.1:{port}/0")
    monkeypatch.setenv("DATABASE_URL", f"postgresql://postgres@127.0.0.1:{port}/postgres")
    config = ROOT / "templates" / kind / "config.yaml"
    assert main(["backup", str(tmp_path / "backup"), "--config", str(config)]) == 1
    said = capsys.readouterr().err
    assert "The response store's server cannot be reached. Check that it runs, and " in said
    assert {"redis": "REDIS_URL", "postgres": "DATABASE_URL"}[kind] in said


@pytest.mark.parametrize("command", ["list", "delete --yes", "delete resp_1 --yes", "export"])
def test_tenant_without_owner_is_wrong_usage(command: str, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--tenant", "acme", "--config", STARTER]) == 2
    assert "The option --tenant needs an --owner." in capsys.readouterr().err


def test_export_of_a_store_that_fails_leaves_no_file(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def breaks_off(*_: object) -> None:
        raise ApiError(503, "The response store's file is damaged.")

    monkeypatch.setattr(store_commands, "_export", breaks_off)
    out = tmp_path / "owner.jsonl"
    assert main(["export", "--owner=", "--out", str(out), "--config", STARTER]) == 1
    assert "The response store's file is damaged." in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [state]


async def add_rows(store: Path, count: int, expires_at: float | None = None) -> None:
    """Add rows to a store: `restore` writes 200 in a commit."""
    records = SqliteRecords(store)
    await records.commit([Put(f"x/{number}", b"", expires_at) for number in range(count)])
    await records.close()


def test_restore_counts_the_expired_rows_that_it_leaves_out(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(tmp_path / "backup"), "--config", STARTER, "--json"]
    asyncio.run(add_rows(state / "responses.db", 3, time.time() + 3600))
    assert main(["backup", *arguments]) == 0
    saved = json.loads(capsys.readouterr().out)
    # The rows of the server's state expire at some time, too.
    with closing(sqlite3.connect(state / "responses.db")) as file:
        within = "SELECT count(*) FROM records WHERE expires_at BETWEEN unixepoch() AND unixepoch() + 7200"
        [expiring] = file.execute(within).fetchone()
    assert expiring >= 3
    monkeypatch.setattr(SqliteRecords, "now", in_two_hours)
    monkeypatch.setenv("STATE_DIR", str(tmp_path / "new"))
    assert main(["restore", *arguments]) == 0
    restored = json.loads(capsys.readouterr().out)
    assert restored["expired"] == expiring
    assert restored["rows"] == saved["rows"] - expiring


async def in_two_hours(_: SqliteRecords) -> float:
    return time.time() + 7200


@pytest.mark.parametrize(
    ("failure", "code", "printed"),
    [
        (ApiError(503, "The disk is full."), 1, "llama-stack-responses: The disk is full.\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
    ids=["full disk", "Ctrl-C"],
)
def test_restore_that_ends_early_says_how_to_complete_it(
    failure: BaseException,
    code: int,
    printed: str,
    state: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    restore = ["restore", str(tmp_path / "backup"), "--config", STARTER]
    asyncio.run(add_rows(state / "responses.db", 200))
    assert main(["backup", *restore[1:]]) == 0
    commit, calls = SqliteRecords.commit, list[SqliteRecords]()

    async def fail_at_the_second(
        records: SqliteRecords, ops: Sequence[Op], conditions: Sequence[Condition] = ()
    ) -> None:
        calls.append(records)
        if len(calls) == 2:
            raise failure
        await commit(records, ops, conditions)

    monkeypatch.setattr(SqliteRecords, "commit", fail_at_the_second)
    monkeypatch.setenv("STATE_DIR", str(tmp_path / "new"))
    assert main(restore) == code
    said = "The backup is only partly restored: repeat the command with --merge.\n"
    assert capsys.readouterr().err == said + printed
    assert main([*restore, "--merge"]) == 0
    assert capsys.readouterr().err == ""


def test_failure_of_the_store_is_one_line(state: Path) -> None:
    """And no line of the server's log."""
    (state / "responses.db").write_bytes(b"not a database")
    said = "The response store's file is damaged or not a database."
    assert piped(f"list --config {STARTER}", state, "") == (1, "", f"llama-stack-responses: {said}\n")


def test_export_is_readable_by_this_user_alone(state: Path, tmp_path: Path) -> None:
    out = tmp_path / "owner.jsonl"
    out.with_name("owner.jsonl.partial").write_text("of an attempt that was killed")
    out.with_name("owner.jsonl.partial").chmod(0o644)
    assert main(["export", "--owner=", "--out", str(out), "--config", STARTER]) == 0
    assert out.stat().st_mode & 0o777 == 0o600
    assert not out.with_name("owner.jsonl.partial").exists()


def test_export_to_a_folder_that_does_not_exist_is_one_sentence(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "--owner=", "--out", str(tmp_path / "gone" / "out"), "--config", STARTER]) == 1
    assert "Cannot write" in capsys.readouterr().err


def test_delete_of_unknown_responses_without_yes_names_them(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["delete", "resp_0", "--config", STARTER]) == 1
    assert capsys.readouterr().err == "llama-stack-responses: Not stored, or still in progress: resp_0.\n"


@pytest.mark.parametrize(("content", "expected"), [(None, "Cannot read"), (b"{}", "not a backup")])
def test_restore_of_a_wrong_file_makes_no_store(
    content: bytes | None,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("STATE_DIR", str(tmp_path / "state"))
    if content is not None:
        (tmp_path / "backup").write_bytes(content)
    assert main(["restore", str(tmp_path / "backup"), "--config", STARTER]) == 1
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "state").exists()
