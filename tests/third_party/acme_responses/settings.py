"""The setting of the feature."""

from typing import Final

from pydantic import BaseModel, ConfigDict

from llama_stack_responses.core.feature_settings import FeatureSettings


class Acme(BaseModel):
    """What the feature does.

    Attributes:
        greeting: what its route answers.
    """

    model_config = ConfigDict(extra="forbid")

    greeting: str = "Hello"


ACME: Final[FeatureSettings[Acme]] = FeatureSettings("acme", Acme, Acme)
