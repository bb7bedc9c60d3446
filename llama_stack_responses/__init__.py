"""The OpenAI Responses API for Llama Stack and OGX.

`docs/reference/public-api.md` lists what other packages may import. All else may change in any version.
"""

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .config import ResponsesConfig
    from .service.responses import OpenAIResponsesImpl

__all__ = ["OpenAIResponsesImpl", "ResponsesConfig"]

_PLACES: Final = {"OpenAIResponsesImpl": "service.responses", "ResponsesConfig": "config"}
"""The modules of these names. They import much, and the modules of the package import this one first."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
