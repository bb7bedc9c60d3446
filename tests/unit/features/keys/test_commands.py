"""The command `keys` on a SQLite store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from llama_stack_responses.cli import main
from tests.support.variants import responses_config

pytestmark = pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
"""The hosts read a deprecated field of their own."""

type Json = dict[str, Any]

UNKNOWN = f"key_{'0' * 24}"


class Commands:
    """Runs commands on a store of the starter template."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._config = folder / "config.yaml"
        self._capsys = capsys

    def run(self, *words: str, code: int = 0) -> str:
        """Return what a command prints; its errors, if it is to fail."""
        assert main([*words, "--config", str(self._config)]) == code
        printed = self._capsys.readouterr()
        return printed.err if code else printed.out

    def create(self, *words: str) -> Json:
        """Create a key, and return what is printed of it."""
        return self._object(self.run("keys", "create", "--json", *words))

    def listed(self, *words: str) -> list[Json]:
        """Return the keys."""
        return [self._object(line) for line in self.run("keys", "list", "--json", *words).splitlines()]

    @staticmethod
    def _object(line: str) -> Json:
        value: Json = json.loads(line)
        return value

    def name_operators(self) -> None:
        """Set the setting `roles`."""
        stack = yaml.safe_load(self._config.read_text())
        responses_config(stack)["roles"] = {"operator": {"roles": ["operator"]}}
        self._config.write_text(yaml.safe_dump(stack))


@pytest.fixture
def commands(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setenv("STATE_DIR", str(tmp_path / "state"))
    assert main(["init", "starter", str(tmp_path)]) == 0
    capsys.readouterr()
    return Commands(tmp_path, capsys)


def test_first_key_is_made_before_the_store(commands: Commands) -> None:
    token = commands.run("keys", "create", "--owner", "ada").strip()
    assert token.startswith("sk-lsr-")
    [key] = commands.listed()
    assert (key["owner"]["name"], key["name"], key["status"]) == ("ada", "ada", "active")
    assert key["redacted_value"] == f"{token[:31]}...{token[-4:]}"
    assert key["id"] == f"key_{token[7:31]}"
    assert token[32:] not in json.dumps(key)


def test_options_of_a_key_are_kept(commands: Commands) -> None:
    words = "--owner ada --name laptop --team search --role lead --role lead --model local/a --model other/* --days 1"
    limits = ["--limit", "requests_per_minute=60", "--limit", "budget_per_day=0.5"]
    made = commands.create(*words.split(), *limits)
    assert made["value"].startswith("sk-lsr-")
    [key] = commands.listed("--owner", "ada", "--team", "search")
    assert key == {name: value for name, value in made.items() if name != "value"}
    assert (key["team"], key["roles"], key["models"]) == ("search", ["lead"], ["local/a", "other/*"])
    assert key["limits"] == {"requests_per_minute": 60, "budget_per_day": 0.5}
    assert key["expires_at"] == key["created_at"] + 86_400
    assert commands.listed("--owner", "bob") == commands.listed("--team", "sales") == []


def test_rotated_and_revoked_keys_are_listed_so(commands: Commands) -> None:
    made = commands.create("--owner", "ada")
    token = commands.run("keys", "rotate", made["id"], "--overlap-hours", "2").strip()
    assert token != made["value"]
    [key] = commands.listed()
    assert 7_100 < key["older_token_expires_at"] - key["created_at"] <= 7_300
    assert "30 s" in commands.run("keys", "revoke", made["id"])
    assert [each["status"] for each in commands.listed()] == ["revoked"]
    assert "revoked" in commands.run("keys", "list")
    assert "no active key" in commands.run("keys", "rotate", made["id"], code=1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--name", "x\x1b[31m"], "'name' is not"),
        (["--model", "a*b"], "'*' that is not at the end"),
        (["--model", ""], "'models' is not"),
        (["--limit", "Requests=1"], "'limits' has the entry 'Requests'"),
        (["--limit", "requests=-1"], "'limits' has the entry 'requests': it may have requests_per_minute,"),
        (["--limit", "running=-1"], "wrong value of 'running': input should be greater than or equal to 1."),
        (["--limit", "running=1.5"], "wrong value of 'running'"),
        (["--limit", "budget_per_day=nan"], "wrong value of 'budget_per_day'"),
        (["--limit", "budget_per_day=inf"], "wrong value of 'budget_per_day'"),
        (["--team", " search"], "'team' is not"),
    ],
)
def test_key_with_a_wrong_option_is_not_made(commands: Commands, words: list[str], said: str) -> None:
    commands.create("--owner", "ada")
    assert said in commands.run("keys", "create", "--owner", "bob", *words, code=1)
    assert [key["owner"]["name"] for key in commands.listed()] == ["ada"]


@pytest.mark.parametrize("key_id", [UNKNOWN, "key_", "ak/x", "resp_1"])
@pytest.mark.parametrize("action", ["rotate", "revoke"])
def test_unknown_key_is_an_error(commands: Commands, action: str, key_id: str) -> None:
    commands.create("--owner", "ada")
    assert key_id in commands.run("keys", action, key_id, code=1)


def test_owner_is_exported_and_deleted_with_their_keys(commands: Commands) -> None:
    made = commands.create("--owner", "ada")
    other = commands.create("--owner", "bob")
    [line] = commands.run("export", "--owner", "ada").splitlines()
    exported = json.loads(line)
    assert (exported["type"], exported["key"]["id"], len(exported["secrets"])) == ("key", made["id"], 1)
    assert made["value"][32:-4] not in line
    assert "digest" not in line
    assert "1 keys" in commands.run("delete", "--owner", "ada", code=2)
    commands.run("delete", "--owner", "ada", "--yes")
    assert [key["id"] for key in commands.listed()] == [other["id"]]


def test_commands_are_audited_where_there_are_operators(commands: Commands) -> None:
    commands.create("--owner", "ada")
    assert commands.run("audit", "--json") == ""
    commands.name_operators()
    key = commands.create("--owner", "ada")["id"]
    commands.run("keys", "rotate", key)
    commands.run("keys", "revoke", key)
    commands.run("export", "--owner", "ada")
    commands.run("delete", "--owner", "ada", "--yes")
    entries = [json.loads(line) for line in commands.run("audit", "--json").splitlines()]
    assert [each["type"] for each in reversed(entries)] == [
        "api_key.created",
        "api_key.updated",
        "api_key.deleted",
        "owner.exported",
        "owner.deleted",
    ]
    assert [each["resource"]["id"] for each in reversed(entries)] == [key] * 3 + [None] * 2
    assert {each["actor"]["type"] for each in entries} == {"command"}
    assert len(commands.run("audit", "--owner", "ada", "--json").splitlines()) == 3
    assert "owner.deleted" in commands.run("audit", "--limit", "1")
    assert commands.run("audit", "--actor", "nobody", "--json") == ""


def test_command_that_does_nothing_is_not_audited(commands: Commands) -> None:
    commands.name_operators()
    key = commands.create("--owner", "ada")["id"]
    commands.run("keys", "revoke", key)
    written = commands.run("audit", "--json")
    assert "was revoked already" in commands.run("keys", "revoke", key)
    commands.run("keys", "rotate", key, code=1)
    for action in ("rotate", "revoke"):
        commands.run("keys", action, UNKNOWN, code=1)
    commands.run("delete", f"resp_{'0' * 24}", "--yes", code=1)
    assert commands.run("audit", "--json") == written
