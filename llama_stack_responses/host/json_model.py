"""JSON that the host's providers can read as they read its own models."""

from __future__ import annotations

from typing import Any


class JsonModel(dict[str, Any]):
    """A JSON object whose fields are attributes too; those that are absent are None.

    The host's models know fewer kinds of messages than its model servers take, so messages are not made into those. But
    some of its providers, `remote::ollama` among them, look into messages as if they were, and put images in the place
    of their URLs; and its inference store dumps them. What is inside is made a `JsonModel` when it is first looked at,
    as a copy, so that others who have the same message never see it changed.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = self.get(name)
        if isinstance(value, dict) and not isinstance(value, JsonModel):
            value = self[name] = JsonModel(value)
        elif isinstance(value, list):
            value = self[name] = [JsonModel(each) if type(each) is dict else each for each in value]
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def model_dump(self, **_: Any) -> dict[str, Any]:
        """The object itself: it is what it would be dumped to."""
        return self
