"""All wrong settings of the providers in a stack's configuration, with their lines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
from pydantic import BaseModel

from llama_stack_openai_chat.config import OpenAIChatConfig
from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.config.wrong_settings import HostFields, wrong_settings

ROOT: Final = Path(__file__).parents[3]
MODELS: Final[dict[str, type[BaseModel]]] = {"remote::openai-chat": OpenAIChatConfig, "inline::kv": ResponsesConfig}
STACK: Final = """\
providers:
  inference:
  - provider_id: local
    provider_type: remote::openai-chat
    module: ours
    config:
      base_url: ${env.INFERENCE_URL:=http://localhost:8080/v1}
      api_kex: sesame
      network:
        tls: {verfy: false}
  - provider_id: ${env.EMBEDDING_URL:+embeddings}
    provider_type: remote::openai-chat
    module: ours
    config:
      base_url: ${env.EMBEDDING_URL:=}
  - provider_id: keyless
    provider_type: remote::openai-chat
    module: ours
    config: {}
  responses:
  - provider_id: responses
    provider_type: inline::kv
    module: ours
    config:
      store: {type: sqlite, pth: a.db}
      retention_dayz: 7
      profiles:
      - match: "*"
      - imges: true
  files:
  - provider_id: files
    provider_type: inline::localfs
    config: {anything: true}
"""
MISSPELT: Final = [
    "line 19: 'base_url' of 'keyless': this setting is missing.",
    "line 8: 'api_kex' of 'local': there is no such setting here; did you mean 'api_key'?",
    "line 10: 'network.tls.verfy' of 'local': there is no such setting here; did you mean 'verify'?",
    "line 25: 'store.sqlite.pth' of 'responses': there is no such setting here; did you mean 'path'?",
    "line 26: 'retention_dayz' of 'responses': there is no such setting here; did you mean 'retention_days'?",
    "line 29: 'profiles.1.imges' of 'responses': there is no such setting here; did you mean 'images'?",
]
URL: Final = (
    "line 7: 'base_url' of 'local' (from INFERENCE_URL in the environment): 'localhost' does not begin with http:// or "
    "https://."
)


def find(module: str, provider_type: str) -> type[BaseModel] | None:
    """Return the settings class of a provider of the module `ours`."""
    return MODELS[provider_type] if module == "ours" else None


@pytest.mark.parametrize(
    ("environment", "more"),
    [
        ({}, []),
        ({"INFERENCE_URL": "localhost"}, [URL]),
        (
            {"EMBEDDING_URL": "localhost"},
            [URL.replace("line 7", "line 15").replace("local'", "embeddings'").replace("INFERENCE", "EMBEDDING")],
        ),
    ],
)
def test_wrong_settings_of_all_providers_are_named_with_their_lines(
    environment: Mapping[str, str], more: list[str]
) -> None:
    said = list(wrong_settings(STACK, find, environment))
    assert sorted(said) == sorted([*MISSPELT, *more])
    assert "sesame" not in "".join(said)


def test_settings_class_of_disabled_provider_is_not_looked_for() -> None:
    """Looking for it imports the provider."""
    found: list[str] = []

    def noted(module: str, provider_type: str) -> type[BaseModel] | None:
        found.append(provider_type)
        return find(module, provider_type)

    list(wrong_settings(STACK, noted, {}))
    without, found[:] = found[:], []
    list(wrong_settings(STACK, noted, {"EMBEDDING_URL": "http://localhost"}))
    assert found.count("remote::openai-chat") == 3
    assert without.count("remote::openai-chat") == 2


def test_provider_without_the_value_of_a_variable_is_left_to_the_host() -> None:
    text = STACK.replace(":=http://localhost:8080/v1", "")
    assert not any("'local'" in each for each in wrong_settings(text, find, {}))


@pytest.mark.parametrize(
    "text", ["", "[]", "providers: 3", "providers: {inference: {}}", "providers: {responses: [3]}"]
)
def test_configuration_of_another_form_is_left_to_the_host(text: str) -> None:
    assert list(wrong_settings(text, find, {})) == []


@pytest.mark.parametrize("path", sorted(ROOT.glob("templates/*/config.yaml")), ids=lambda path: path.parent.name)
def test_template_has_no_wrong_setting(path: Path) -> None:
    def any_module(_: str, provider_type: str) -> type[BaseModel] | None:
        return MODELS.get(provider_type)

    assert list(wrong_settings(path.read_text(), any_module, {})) == []


HOST: Final = HostFields(
    top=["version", "providers", "server"],
    server=["port", "workers"],
    entry=["provider_id", "provider_type", "module", "config"],
)


def test_disabled_provider_is_looked_for_only_if_the_host_ignores_a_name() -> None:
    found: list[str] = []

    def noted(module: str, provider_type: str) -> type[BaseModel] | None:
        found.append(provider_type)
        return find(module, provider_type)

    stack = "providers: {responses: [{provider_id: __disabled__, provider_type: 'inline::kv', module: ours}]}"
    assert list(wrong_settings(stack, noted, {}, HOST)) == []
    assert found == []
    [said] = wrong_settings(f"{stack}\nfetch: {{}}", noted, {}, HOST)
    assert "'fetch' is at a level where it is ignored" in said
    assert found == ["inline::kv"]


LEVELS: Final = """\
version: 2
{top}
providers:
  inference:
  - provider_id: local
    provider_type: remote::openai-chat
    module: ours
    {inference}
    config: {{base_url: "http://localhost:8080/v1"}}
  responses:
  - provider_id: responses
    provider_type: inline::kv
    module: ours
    config: {{}}
  other:
  - {{provider_id: other, provider_type: other, anything: 3}}
server:
  port: 8321
  {server}
"""
KV: Final = "the provider 'inline::kv' under providers.responses"
CHAT: Final = "the provider 'remote::openai-chat' under providers.inference"


@pytest.mark.parametrize(
    ("level", "setting", "advice"),
    [
        ("inference", "max_retries: 3", f"move it into the 'config' of {CHAT}"),
        ("inference", "network: {}", f"move it into the 'config' of {CHAT}"),
        ("inference", "qqq: 3", "take it out; an entry has provider_id, provider_type, module, config"),
        ("server", "allowed_origins: []", f"move it into the 'config' of {KV}"),
        ("server", "fetch: {}", f"move it into the 'config' of {KV}"),
        ("top", "max_retries: 3", f"move it into the 'config' of {CHAT}"),
        ("top", "responses: {retention_days: 3}", f"move its settings into the 'config' of {KV}"),
        ("top", "allowed_networks: []", f"move it into the 'config' of {KV} as 'fetch.allowed_networks'"),
        ("top", "config: {fetch: {}}", f"move it into the entry of {CHAT}"),
        ("top", "fetchh: {}", f"move it into the 'config' of {KV}, where it is called 'fetch'"),
        ("top", "mpc: {}", f"move it into the 'config' of {KV}, where it is called 'mcp'"),
    ],
)
def test_setting_at_a_level_of_the_host_is_named_with_its_place(level: str, setting: str, advice: str) -> None:
    text = LEVELS.format(**{"top": "", "inference": "", "server": "", level: setting})
    line = {"top": 2, "inference": 8, "server": 19}[level]
    name = setting.partition(":")[0]
    said = list(wrong_settings(text, find, {}, HOST))
    assert said == [f"line {line}: '{name}' is at a level where it is ignored: {advice}."]


@pytest.mark.parametrize(
    "name", ["x-common", "models", "shields", "tool_groups", "metadata_store", "inference_store", "telemetry", "3"]
)
def test_other_unknown_key_at_the_top_is_left_to_the_host(name: str) -> None:
    text = LEVELS.format(top=f"{name}: {{}}", inference="", server="")
    assert list(wrong_settings(text, find, {}, HOST)) == []
