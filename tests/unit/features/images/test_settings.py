"""The settings of the image server in the provider's configuration."""

import pytest
from pydantic import ValidationError

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.features.images.settings import SETTINGS


@pytest.mark.parametrize("url", ["", None])
def test_image_generation_without_an_address_is_off(url: str | None) -> None:
    """The templates leave the variables of the image server empty."""
    given = {"url": url, "api_key": None, "model": None}
    assert SETTINGS.of(ResponsesConfig.model_validate({"image_generation": given})) is None


def test_image_generation_knows_its_options() -> None:
    given = {"url": "http://localhost:1234/v1", "options": ["size"]}
    config = SETTINGS.of(ResponsesConfig.model_validate({"image_generation": given}))
    assert config is not None
    assert config.options == {"size"}
    with pytest.raises(ValidationError, match=r"image_generation\.options"):
        ResponsesConfig.model_validate({"image_generation": {**given, "options": ["seed"]}})
