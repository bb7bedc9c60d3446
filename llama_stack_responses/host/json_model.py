"""JSON with the interface of the host's models."""

from __future__ import annotations

from typing import Any


class JsonModel(dict[str, Any]):
    """A JSON object whose fields are also attributes; absent ones are None.

    The host's models allow fewer kinds of messages than its model servers accept, so messages are not converted to
    them. But some of its providers, such as `remote::ollama`, access messages as models and replace image URLs by
    images; and its inference store dumps them. Nested values become a `JsonModel` on first access, as a copy, so that
    other holders of the same message are not affected by changes.
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
        """Return the object itself: it is already plain JSON."""
        return self
