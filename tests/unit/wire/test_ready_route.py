"""The route that reports readiness without a token."""

from typing import cast

from fastapi import APIRouter

from llama_stack_responses.admission import Admission
from llama_stack_responses.concurrency.large_work import LargeWork
from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.service.responses import OpenAIResponsesImpl
from llama_stack_responses.wire.public_routes import add_ready_route
from llama_stack_responses.wire.route_admission import RouteAdmission


class RecordingRouter(APIRouter):
    """A router that keeps the methods of the routers that it includes."""

    def include_router(self, router: APIRouter, *_: object, **__: object) -> None:
        self.included = {method for route in router.routes for method in getattr(route, "methods", ())}


def test_no_route_that_needs_a_token_has_the_method_of_readiness() -> None:
    """The hosts read one method of each route, and a later route of the same path and method replaces an earlier one."""
    router, limits = RecordingRouter(), ResponsesConfig().limits
    of_route = RouteAdmission(limits, Owner, LargeWork(), lambda _: None, Admission(limits.stream_quota))
    add_ready_route(router, cast("OpenAIResponsesImpl", None), of_route, "public")
    assert "POST" in router.included
    assert "GET" not in router.included
