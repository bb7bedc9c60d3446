"""Loggers whose lines name the request and the response that they are about, and their trace."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any, Final

from opentelemetry import context, trace

_ABOUT: Final = context.create_key("llama_stack_responses.about")


@contextmanager
def about(**names: str) -> Iterator[None]:
    """Names what all lines are about that are logged within the block, and in the tasks that are begun there."""
    token = context.attach(context.set_value(_ABOUT, {**_known(), **names}))
    try:
        yield
    finally:
        context.detach(token)


def get_logger(name: str) -> logging.LoggerAdapter[logging.Logger]:
    """The logger of this name; its records have what `about` named as attributes, which JSON logs show as fields."""
    return _Naming(logging.getLogger(name))


class _Naming(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, {**kwargs, "extra": {**_trace(), **_known(), **(kwargs.get("extra") or {})}}


def _known() -> Mapping[str, str]:
    known: Any = context.get_value(_ABOUT)
    return known or {}


def _trace() -> Mapping[str, str]:
    span = trace.get_current_span().get_span_context()
    return {"trace_id": trace.format_trace_id(span.trace_id)} if span.is_valid else {}
