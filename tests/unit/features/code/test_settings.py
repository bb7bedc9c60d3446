"""The settings of containers in the provider's configuration."""

from pathlib import Path

import pytest

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.features.code.settings import CODE_INTERPRETER


@pytest.mark.parametrize("folder", [None, ""])
def test_code_interpreter_without_folder_is_none(folder: str | None) -> None:
    """The host substitutes this value for an environment variable that is not set."""
    assert CODE_INTERPRETER.of(ResponsesConfig.model_validate({"code_interpreter": {"folder": folder}})) is None


def test_code_interpreter_with_folder_is_accepted() -> None:
    settings = CODE_INTERPRETER.of(ResponsesConfig.model_validate({"code_interpreter": {"folder": "/x"}}))
    assert settings
    assert settings.folder == Path("/x")
