"""All wrong settings of the providers in a stack's configuration, with their lines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from llama_stack_openai_chat.config import OpenAIChatConfig
from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.config.wrong_settings import HostFields, wrong_fields, wrong_settings

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
    "line 25: 'store.pth' of 'responses': there is no such setting here; did you mean 'path'?",
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


OF_OTHERS: Final = """\
providers:
  inference:
  - provider_id: local
    provider_type: remote::openai-chat
    module: ours
    config: {{base_url: "http://localhost:8080/v1", {inference}}}
  responses:
  - provider_id: responses
    provider_type: inline::kv
    module: ours
    config: {{{responses}}}
"""


@pytest.mark.parametrize(
    ("inference", "responses", "said"),
    [
        (
            "",
            "max_retries: 3",
            "line 11: 'max_retries' of 'responses': there is no such setting here; move it into the 'config' of the "
            "provider 'remote::openai-chat' under providers.inference.",
        ),
        (
            "retention_days: 3",
            "",
            "line 6: 'retention_days' of 'local': there is no such setting here; move it into the 'config' of the "
            "provider 'inline::kv' under providers.responses.",
        ),
        (
            "allowed_networks: [loopback]",
            "",
            "line 6: 'allowed_networks' of 'local': there is no such setting here; move it into the 'config' of the "
            "provider 'inline::kv' under providers.responses as 'fetch.allowed_networks'.",
        ),
        (
            "",
            "fetch: {allowed_networks: [loopbck]}",
            "line 11: 'fetch.allowed_networks.0' of 'responses': this is not a network such as 10.1.0.0/16, nor "
            "'loopback', which is this machine; did you mean 'loopback'?",
        ),
        (
            "",
            "ready_providers: [local, locla]",
            "line 11: 'ready_providers.1' of 'responses': the stack has no inference provider 'locla'; did you mean "
            "'local'?",
        ),
        (
            "",
            "ready_providers: [nosuch]",
            "line 11: 'ready_providers.0' of 'responses': the stack has no inference provider 'nosuch', it has local.",
        ),
        (
            "",
            "model_servers: {local: {concurrency: 2}, locla: {concurrency: 2}}",
            "line 11: 'model_servers.locla' of 'responses': the stack has no inference provider 'locla'; did you mean "
            "'local'?",
        ),
        (
            "",
            "model_servers: {nosuch: {concurrency: 2}}",
            "line 11: 'model_servers.nosuch' of 'responses': the stack has no inference provider 'nosuch', it has "
            "local.",
        ),
        (
            "",
            "model_servers: {local: {concurrency_per_user: 2}}",
            "line 11: 'model_servers.local.concurrency' of 'responses': this setting is missing.",
        ),
        (
            "",
            "model_servers: {local: {concurrency: 2, concurrency_per_user: 4}}",
            "line 11: 'model_servers.local' of 'responses': 'concurrency_per_user' must be at most 'concurrency'.",
        ),
        ("", "ready_providers: [local]", ""),
        ("", "model_servers: {local: {concurrency: 2}}", ""),
        ("", "ready_providers: any", ""),
    ],
)
def test_setting_of_another_provider_or_wrong_value_is_said_with_its_line(
    inference: str, responses: str, said: str
) -> None:
    text = OF_OTHERS.format(inference=inference, responses=responses)
    assert list(wrong_settings(text, find, {})) == ([said] if said else [])


@pytest.mark.parametrize("path", sorted(ROOT.glob("templates/*/config.yaml")), ids=lambda path: path.parent.name)
def test_template_has_no_wrong_setting(path: Path) -> None:
    def any_module(_: str, provider_type: str) -> type[BaseModel] | None:
        return MODELS.get(provider_type)

    assert list(wrong_settings(path.read_text(), any_module, {})) == []


HOST: Final = HostFields(
    top=["version", "providers", "server", "storage"],
    server=["port", "workers"],
    entry=["provider_id", "provider_type", "module", "config"],
)


@pytest.mark.parametrize(
    ("text", "environment", "said"),
    [
        (
            "server: {workers: '${env.WORKERS:=1}'}",
            {"WORKERS": "abc"},
            "line 1: 'server.workers' (from WORKERS in the environment): the number of server processes is expected "
            "here, from 1 to 256.",
        ),
        (
            "server: {workers: 0}",
            {},
            "line 1: 'server.workers': the number of server processes is expected here, from 1 to",
        ),
        (
            "server: {workers: 1000}",
            {},
            "line 1: 'server.workers': the number of server processes is expected here, from 1 to",
        ),
        ("server: {workers: '${env.WORKERS:=2}'}", {}, ""),
        ("providers: []", {}, "line 1: 'providers': a mapping is expected here"),
        ("providers:\n  files: {}", {}, "line 2: 'providers.files': a list is expected here, with an entry for each"),
        (
            "providers:\n  responses: [{provider_id: r, provider_type: 'inline::kv', module: ours}]\n  fetch: {}",
            {},
            "line 3: 'providers.fetch': move it into the 'config' of the provider 'inline::kv' under providers.respon",
        ),
        ("providers:\n  files:\n  - 3", {}, "line 3: 'providers.files.0': a mapping is expected here"),
        (
            "providers:\n  files:\n  - provider_type: x",
            {},
            "line 3: 'providers.files.0.provider_id': this setting is missing.",
        ),
        (
            "providers:\n  files:\n  - {provider_id: x, provider_type: x, config: [3]}",
            {},
            "line 3: 'providers.files.0.config': a mapping is expected here.",
        ),
    ],
)
def test_another_form_than_the_host_expects_is_said_with_its_line(
    text: str, environment: Mapping[str, str], said: str
) -> None:
    found = list(wrong_settings(text, find, environment, HOST))
    assert len(found) == bool(said)
    assert "".join(found).startswith(said)


class Storage(BaseModel):
    """A part of a host's class."""

    db_path: str


class Stack(BaseModel):
    """A host's class."""

    storage: dict[str, Storage | None]


def test_error_of_the_host_is_said_with_its_line() -> None:
    text = "storage:\n  a: {db_path: b}\n  c:\n    db_path: 3\n  d: {}"
    with pytest.raises(ValidationError) as raised:
        Stack(**yaml.safe_load(text))
    assert list(wrong_fields(text, Stack, raised.value)) == [
        "line 4: 'storage.c.db_path': a text is expected here.",
        "line 5: 'storage.d.db_path': this setting is missing.",
    ]


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
        ("top", "store: {}", f"move it into the 'config' of {KV}"),
        ("top", "storages: {}", "did you mean 'storage'?"),
        ("server", "workerz: 3", "did you mean 'workers'?"),
    ],
)
def test_setting_at_a_level_of_the_host_is_named_with_its_place(level: str, setting: str, advice: str) -> None:
    text = LEVELS.format(**{"top": "", "inference": "", "server": "", level: setting})
    line = {"top": 2, "inference": 8, "server": 19}[level]
    name = setting.partition(":")[0]
    said = list(wrong_settings(text, find, {}, HOST))
    assert said == [
        f"line {line}: '{name}' is at a level where it is ignored: {advice}{'' if advice.endswith('?') else '.'}"
    ]


@pytest.mark.parametrize(
    "name", ["x-common", "models", "shields", "tool_groups", "metadata_store", "inference_store", "telemetry", "3"]
)
def test_other_unknown_key_at_the_top_is_left_to_the_host(name: str) -> None:
    text = LEVELS.format(top=f"{name}: {{}}", inference="", server="")
    assert list(wrong_settings(text, find, {}, HOST)) == []
