"""The route that reports readiness without a token."""

from typing import cast

from fastapi import APIRouter
from fastapi.routing import APIRoute

from llama_stack_responses.admission import Admission
from llama_stack_responses.concurrency.large_work import LargeWork
from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.service.responses import OpenAIResponsesImpl
from llama_stack_responses.wire.public_routes import add_ready_route
from llama_stack_responses.wire.route_admission import RouteAdmission


class RecordingRouter(APIRouter):
    """A router that keeps the routers that it includes."""

    def include_router(self, router: APIRouter, *_: object, **__: object) -> None:
        self.included = router


def test_no_route_of_readiness_needs_a_token() -> None:
    """The hosts read one method of each route, whichever a set of them has first, with or without included routers."""
    router, limits = RecordingRouter(), ResponsesConfig().limits
    of_route = RouteAdmission(limits, Owner, LargeWork(), lambda _: None, Admission(limits.stream_quota))
    add_ready_route(router, cast("OpenAIResponsesImpl", None), of_route, "public")
    routes = [cast("APIRoute", route) for route in (*router.routes, *router.included.routes)]
    assert [(route.openapi_extra or {}).get("public") for route in routes] == [True, True]
