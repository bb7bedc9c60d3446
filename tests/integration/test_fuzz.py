"""Generated requests that fit the API's OpenAPI description, or nearly do, get answers that fit it: no 500, no timeout.

`make fuzz` runs more examples.
"""

import os
from typing import Any, Final

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, assume, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.stack import LiveStack
from tests.support.upstream import Upstream

type Json = dict[str, Any]

pytestmark = [pytest.mark.live, pytest.mark.extended]

EXAMPLES: Final = int(os.environ.get("FUZZ_EXAMPLES", "8"))
"""Examples of each operation and each generation mode, with a fixed seed."""
CHECKS: Final = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
AT_ANY_PACE: Final = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def aim(body: Any) -> None:
    """Point a request at an existing model, and at nothing outside this machine."""
    if isinstance(body, dict) and isinstance(body.get("model"), str):
        body["model"] = "local/fast-3"
        if isinstance(body.get("tools"), list):
            body["tools"] = [tool for tool in body["tools"] if isinstance(tool, dict) and tool.get("type") != "mcp"]


def only_ours(document: Json) -> Json:
    """Return the description of this package's routes, without those of the page that stream for minutes.

    Parts of the host's do not match its behavior.
    """
    paths = {
        path: {
            method: operation
            for method, operation in operations.items()
            if operation["responses"].get("default", {}).get("description") == "An error."
            and operation["responses"]["200"].get("content", {}).keys() != {"text/event-stream"}
        }
        for path, operations in document["paths"].items()
    }
    return {"openapi": document["openapi"], "info": document["info"], "paths": paths}


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_generated_requests_get_answers_that_match_the_openapi_schema(
    stack: LiveStack, upstream: Upstream, mode: GenerationMode
) -> None:
    document = only_ours(httpx.get(f"{stack.base_url}/openapi.json", timeout=60, trust_env=False, verify=False).json())
    schema = schemathesis.openapi.from_dict(document)
    operations = [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]
    assert len(operations) == sum(len(methods) for methods in document["paths"].values()) > 12
    if mode is GenerationMode.NEGATIVE:
        # Negative path parameters are not generated.
        operations = [operation for operation in operations if operation.body or operation.query]
    for operation in operations:

        @AT_ANY_PACE
        @given(case=operation.as_strategy(generation_mode=mode))
        def attempt(case: Any) -> None:
            # The host does not route paths with a line break to this package.
            assume("\n" not in "".join(map(str, (case.path_parameters or {}).values())))
            aim(case.body)
            answer = case.call(base_url=stack.base_url, timeout=60)
            case.validate_response(answer, checks=CHECKS)

        attempt()
