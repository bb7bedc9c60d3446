"""How the commands begin and end: pipes, Ctrl-C, wrong arguments and absent stores."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from llama_stack_responses.cli import main
from llama_stack_responses.shell import commands
from llama_stack_responses.shell.tables import columns_of, print_rows
from tests.support.golden_store import FOLDER, Golden, load
from tests.support.process import free_port

ROOT: Final = Path(__file__).parents[3]
STARTER: Final = str(ROOT / "templates" / "starter" / "config.yaml")
CLI: Final = "import sys; from llama_stack_responses.cli import main; sys.exit(main())"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state of a server that has made some responses."""
    monkeypatch.setenv("STATE_DIR", str(tmp_path / "state"))
    load(Golden.read(FOLDER / "2026-11-23-afternoon-sqlite.json.xz"), None, tmp_path / "state")
    return tmp_path / "state"


@pytest.mark.parametrize("command", ["list", "list --json", "export --owner=", "tail --every=0.1"])
def test_reader_that_has_enough_ends_a_command_silently(command: str, state: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        [sys.executable, "-c", CLI, *command.split(), "--config", STARTER],
        env={**os.environ, "STATE_DIR": str(state), "PYTHONPATH": str(ROOT)},
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
        timeout=60,
    )
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, b"")


def test_ctrl_c_ends_a_command_silently(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "stats", interrupted)
    assert main(["stats", "--config", STARTER]) == 128 + signal.SIGINT
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("arguments", [["list", "--limit", "0"], ["tail", "--every", "0"], ["tail", "--every", "nan"]])
def test_argument_out_of_range_is_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "it is " in capsys.readouterr().err


def test_store_that_does_not_exist_is_an_error_and_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STATE_DIR", str(tmp_path / "other"))
    assert main(["list", "--config", STARTER]) == 1
    assert "There is no store" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_configuration_that_does_not_exist_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--config", str(tmp_path / "gone.yaml")]) == 2
    assert "gone.yaml: name the stack's configuration with --config.\n" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["list --config", "stats --config", "import"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a stack's configuration: it has no names with values."),
        ("- a\n", "is not a stack's configuration: it has no names with values."),
        (
            Path(STARTER).read_text().replace("${env.STATE_DIR:=~/.llama-stack-responses}", "${env.NOPE}"),
            "takes NOPE from the environment, where it is not set or is empty.",
        ),
    ],
    ids=["empty", "list", "variable"],
)
def test_configuration_that_the_host_cannot_read_is_one_sentence(
    command: str, text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOPE", raising=False)
    config = tmp_path / "config.yaml"
    config.write_text(text)
    # Another process: the host, which is imported here, stays.
    ended = subprocess.run(
        [sys.executable, "-c", CLI, *command.split(), str(config)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (2, f"llama-stack-responses: {config} {said}\n")


def test_columns_of_wide_letters_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"a": "日本語", "b": "x"}, {"a": "e\u0301", "b": "y"}, {"a": "\U0001f600", "b": "z"}]
    print_rows(rows, {"a": "A", "b": "B"}, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert {columns_of(line) for line in lines} == {len("日本語") * 2 + len("  B")}


@pytest.mark.parametrize("kind", ["redis", "postgres"])
def test_backup_of_a_store_that_is_down_says_so(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    monkeypatch.setenv("REDIS_URL", f"redis://127.0.0.1:{port}/0")
    monkeypatch.setenv("DATABASE_URL", f"postgresql://postgres@127.0.0.1:{port}/postgres")
    config = ROOT / "templates" / kind / "config.yaml"
    assert main(["backup", str(tmp_path / "backup"), "--config", str(config)]) == 1
    assert "The response store's server cannot be reached." in capsys.readouterr().err


@pytest.mark.parametrize("command", ["list", "delete --yes", "delete resp_1 --yes", "export"])
def test_tenant_without_owner_is_wrong_usage(command: str, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--tenant", "acme", "--config", STARTER]) == 2
    assert "Name the --owner in the --tenant." in capsys.readouterr().err


def test_export_of_a_store_that_is_down_leaves_no_complete_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REDIS_URL", f"redis://127.0.0.1:{free_port()}/0")
    config = ROOT / "templates" / "redis" / "config.yaml"
    out = tmp_path / "owner.jsonl"
    out.with_name("owner.jsonl.partial").write_text("of an earlier attempt")
    assert main(["export", "--owner=", "--out", str(out), "--config", str(config)]) == 1
    assert "The response store's server cannot be reached." in capsys.readouterr().err
    assert not out.exists()
    assert out.with_name("owner.jsonl.partial").stat().st_mode & 0o777 == 0o600


def test_export_is_readable_by_this_user_alone(state: Path, tmp_path: Path) -> None:
    out = tmp_path / "owner.jsonl"
    assert main(["export", "--owner=", "--out", str(out), "--config", STARTER]) == 0
    assert out.stat().st_mode & 0o777 == 0o600
    assert not out.with_name("owner.jsonl.partial").exists()


def test_export_to_a_folder_that_does_not_exist_is_one_sentence(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "--owner=", "--out", str(tmp_path / "gone" / "out"), "--config", STARTER]) == 1
    assert "Cannot write" in capsys.readouterr().err


def test_delete_of_unknown_responses_without_yes_says_so(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["delete", "resp_0", "--config", STARTER]) == 1
    assert capsys.readouterr().err == "llama-stack-responses: Not stored, or still being made: resp_0.\n"


@pytest.mark.parametrize(("content", "said"), [(None, "Cannot read"), (b"{}", "not a backup")])
def test_restore_of_a_wrong_file_makes_no_store(
    content: bytes | None,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("STATE_DIR", str(tmp_path / "state"))
    if content is not None:
        (tmp_path / "backup").write_bytes(content)
    assert main(["restore", str(tmp_path / "backup"), "--config", STARTER]) == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "state").exists()
