"""Settings that are read without the host are those that the host reads."""

import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from llama_stack.core.stack import EnvVarError, replace_env_vars

from llama_stack_responses.config.stack_file import KEYS_ENDPOINT, quick_settings, substituted, wrong_auth
from llama_stack_responses.config.stores import RedisStore, SqliteStore

ROOT: Final = Path(__file__).parents[3]
TEMPLATES: Final = sorted(ROOT.glob("templates/*/config.yaml"))
ENVIRONMENT: Final = {
    "SET": "word",
    "NUMBER": "7",
    "SMALL": "0.5",
    "YES": "True",
    "NO": "false",
    "EMPTY": "",
    "PATH_HOME": "~/x",
    "HOME": "/home/someone",
}
VALUES: Final[list[Any]] = [
    "${env.SET}",
    "a ${env.SET:=b} c",
    "${env.GONE:=b}",
    "${env.GONE:=}",
    "${env.GONE:+b}",
    "${env.SET:+b}",
    "${env.SET:+}",
    "${env.EMPTY:=b}",
    "${env.EMPTY:+b}",
    "${env.NUMBER}",
    "${env.SMALL}",
    "${env.YES}",
    "${env.NO}",
    "${env.GONE:=~/y}",
    "${env.PATH_HOME:=b}",
    "x${env.PATH_HOME:=b}",
    "${env.lower:=b}",
    "${env.SET",
    "redis://${env.SET}:${env.NUMBER}/0",
    "7",
    7,
    None,
    ["${env.NUMBER}", {"a": "${env.GONE:=b}"}],
]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GONE", raising=False)


@pytest.mark.parametrize("value", VALUES)
def test_variables_are_substituted_as_by_the_host(value: Any) -> None:
    now = substituted(value, ENVIRONMENT)
    assert now == replace_env_vars(value)
    assert type(now) is type(replace_env_vars(value))


@pytest.mark.parametrize("value", ["${env.GONE}", "${env.EMPTY}", ["${env.GONE}"]])
def test_variable_that_is_not_set_is_an_error_as_for_the_host(value: Any) -> None:
    with pytest.raises(EnvVarError):
        replace_env_vars(value)
    with pytest.raises(KeyError):
        substituted(value, ENVIRONMENT)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.parent.name)
def test_settings_of_a_template_are_those_of_the_host(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "REDIS_URL": "redis://other:6379",
        "STATE_DIR": "~/state",
        "REDIS_PASSWORD": "",
        "INFERENCE_URL": "http://x",
        "S3_BUCKET": "files",
        "DATABASE_PASSWORD": "p4ss",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    settings = quick_settings(path, ENVIRONMENT | given)
    assert settings is not None
    [provider] = replace_env_vars(yaml.safe_load(path.read_text()))["providers"]["responses"]
    assert settings == type(settings)(**provider["config"])
    if isinstance(settings.store, SqliteStore) and "path" in provider["config"].get("store", {}):
        assert settings.store.path == Path("/home/someone/state/responses.db")
    if isinstance(settings.store, RedisStore):
        assert settings.store.url == "redis://other:6379"


WRONG: Final = {
    "no YAML": "{",
    "no object": "[]",
    "no providers": "{}",
    "another provider": "providers: {responses: [{provider_id: a, provider_type: inline::builtin}]}",
    "a disabled provider": "providers: {responses: [{provider_id: __disabled__, provider_type: inline::kv}]}",
    "a wrong setting": "providers: {responses: [{provider_id: a, provider_type: inline::kv, config: {storre: 1}}]}",
    "a variable that is not set": "providers: {responses: [{provider_id: a, provider_type: '${env.GONE}'}]}",
    "the host's store": "providers: {responses: [{provider_id: a, provider_type: inline::kv, config: {store: {type: host}}}]}",
    "an earlier form": "{routing_table: {}, providers: {responses: [{provider_id: a, provider_type: inline::kv}]}}",
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_configuration_that_is_unusual_is_left_to_the_host(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    assert quick_settings(tmp_path / "config.yaml", {}) is None


def test_configuration_that_is_absent_is_left_to_the_host(tmp_path: Path) -> None:
    assert quick_settings(tmp_path / "config.yaml", {}) is None


@pytest.mark.relatives
@pytest.mark.parametrize("arguments", [["list", "--config", str(TEMPLATES[-1])], ["--help"], ["backup", "--help"]])
def test_commands_do_not_import_the_host(arguments: list[str], tmp_path: Path) -> None:
    code = (
        "import sys\nfrom llama_stack_responses.cli import main\n"
        f"try:\n    main({arguments!r})\nfinally:\n"
        "    print([name for name in sys.modules if name.startswith(('llama_stack.', 'ogx.', 'fastapi', 'openai'))])"
    )
    env = {"STATE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "[]"


def auth(**provider: Any) -> dict[str, Any]:
    return {"server": {"auth": {"provider_config": provider}}}


@pytest.mark.parametrize(
    "stack",
    [
        {},
        {"server": None},
        {"server": {"port": 1}},
        auth(),
        auth(type="custom", endpoint="http://localhost/"),
        auth(type="oauth2_token"),
    ],
)
def test_keys_that_no_auth_asks_for_are_an_error(stack: dict[str, Any]) -> None:
    """The server would be open, though its operator has made keys."""
    assert "does not ask for keys" in wrong_auth(stack, ENVIRONMENT, has_keys=True)
    assert wrong_auth(stack, ENVIRONMENT, has_keys=False) == ""


def test_auth_that_asks_for_keys_needs_them() -> None:
    for endpoint in (KEYS_ENDPOINT, f"${{env.GONE:={KEYS_ENDPOINT}}}"):
        stack = auth(type="custom", endpoint=endpoint)
        assert wrong_auth(stack, ENVIRONMENT, has_keys=True) == ""
        assert "they are off" in wrong_auth(stack, ENVIRONMENT, has_keys=False)
