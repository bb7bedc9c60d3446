"""What of a request's head goes on: its id and its trace."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Final

from starlette.datastructures import Headers
from starlette.types import Scope

from llama_stack_responses.core.ids import new_id
from llama_stack_responses.logs import about
from llama_stack_responses.telemetry.trace_context import is_traced, within

_REQUEST_ID: Final = re.compile("[A-Za-z0-9._:-]{1,128}")


def request_id(scope: Scope) -> str:
    """The request's `x-request-id`, if it has one that can stand in a log as it is; a new one if not."""
    match Headers(scope=scope).getlist("x-request-id"):
        case [given] if _REQUEST_ID.fullmatch(given):
            return given
    return new_id("req")


@contextmanager
def known(scope: Scope, request_id: str) -> Iterator[None]:
    """Has the block belong to the client's trace, and its log lines name the request.

    Where the operator has the host's HTTP server instrumented, the trace is there already.
    """
    with nullcontext() if is_traced() else within(Headers(scope=scope)), about(x_request_id=request_id):
        yield
