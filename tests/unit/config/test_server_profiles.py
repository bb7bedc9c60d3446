"""Profiles of model servers: those of this package, and the operator's file on top."""

from pathlib import Path

import pytest

from llama_stack_responses.chat.adaptation.adaptation import Step
from llama_stack_responses.chat.inference import ModelServer
from llama_stack_responses.config.server_profiles import ServerProfiles, merged
from llama_stack_responses.core.setting_values import WrongConfiguration
from tests.support.snippet_programs import PROFILES_FILE
from tests.support.snippets import blocks

NAMED = [
    "vllm",
    "llama.cpp",
    "ollama",
    "lm-studio",
    "sglang",
    "mistral",
    "deepseek",
    "gemini",
    "groq",
    "cerebras",
    "openrouter",
    "minimax",
    "kimi",
    "glm",
    "xai",
]
GROQ = ModelServer("g", "remote::openai-chat", "api.groq.com:443")


def steps(server: ModelServer, model: str, profiles: ServerProfiles | None = None) -> set[str]:
    """Return the changes for a model, in words."""
    return set(map(str, (profiles or ServerProfiles()).steps(server, model)))


@pytest.mark.parametrize("name", NAMED)
def test_packaged_profile_has_a_source(name: str) -> None:
    entry = ServerProfiles().entries[name]
    assert entry.source is not None
    assert entry.source.startswith("https://")


def test_profile_fits_by_type_and_by_address() -> None:
    assert steps(GROQ, "g/llama") == steps(ModelServer("x", "remote::groq"), "x/llama") == {"drop logprobs"}
    assert steps(ModelServer("groq", "remote::vllm", "10.0.0.1:80"), "groq/llama") == set()


def test_profile_fits_by_the_name_of_the_model_at_its_server() -> None:
    xai = ModelServer("xai", "remote::openai-chat", "api.x.ai:443")
    assert "drop reasoning_effort" in steps(xai, "xai/grok-4")
    assert "drop reasoning_effort" not in steps(xai, "xai/grok-4.3")


def test_model_server_that_nobody_knows_is_left_alone() -> None:
    assert steps(ModelServer("local", "remote::openai-chat", "127.0.0.1:41234"), "local/m") == set()


def test_entry_of_the_operator_replaces_that_of_the_package(tmp_path: Path) -> None:
    path = tmp_path / "profiles.yaml"
    path.write_text(
        """
        - {name: groq}
        - {name: mine, servers: [local], models: ["q*"], parameters: {drop: [user]}, dialect: [schema_in_words]}
        """
    )
    profiles = ServerProfiles(path)
    assert steps(GROQ, "g/llama", profiles) == set()
    assert steps(ModelServer("local"), "local/qwen", profiles) == {"drop user", "schema_in_words"}
    assert steps(ModelServer("local"), "local/llama", profiles) == set()


def test_documented_file_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "profiles.yaml"
    path.write_text(blocks()[PROFILES_FILE].text)
    profiles = ServerProfiles(path)
    assert profiles.entries["groq"].servers == []
    gateway = ModelServer("x", "remote::vllm", "llm.example.com:443")
    assert steps(gateway, "x/qwen3", profiles) == {"drop service_tier", "schema_in_words"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- {servers: [x]}", "0.name: this setting is missing"),
        ("- {name: x, dialect: [klingon]}", "there is no such dialect"),
        ("- {name: x, source: hearsay}", "a source is a URL"),
        ("{", "cannot be read"),
    ],
)
def test_invalid_file_says_what_is_wrong(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "profiles.yaml"
    path.write_text(text)
    with pytest.raises(WrongConfiguration, match=f"'profiles_file'.*{problem}"):
        ServerProfiles(path)


def test_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(WrongConfiguration, match="'profiles_file' cannot be read"):
        ServerProfiles(tmp_path / "none.yaml")


def test_later_change_of_the_same_parameter_replaces_the_former() -> None:
    given = [
        Step("map", ("reasoning_effort", "max", "high")),
        Step("rename", ("max_completion_tokens", "max_tokens")),
        Step("drop", "user"),
        Step("map", ("reasoning_effort", "max", "xhigh")),
        Step("rename", ("max_completion_tokens", "num_predict")),
        Step("drop", "user"),
    ]
    assert sorted(map(str, merged(given))) == [
        "drop user",
        "map reasoning_effort max xhigh",
        "rename max_completion_tokens num_predict",
    ]
