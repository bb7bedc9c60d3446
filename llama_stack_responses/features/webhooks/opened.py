"""What records and delivers webhooks, with the settings `webhooks`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fastapi import APIRouter

from ...feature import Ended, Feature, ObjectEvent, PageView, RouteAdmission, Stack
from ...service.responses import OpenAIResponsesImpl
from ...store.content_names import Hasher
from ...store.records import Op
from .deliveries import Deliveries
from .dispatcher import Dispatcher, Retries, Target
from .endpoints import Endpoints
from .routes import EndpointRoutes, event_types_router, webhooks_router
from .rows import DAY_SECONDS, Event, configured_id
from .sending import Sender
from .settings import EVENT_TYPES, Webhooks


def open_webhooks(stack: Stack, settings: Webhooks) -> Feature:
    """Return what records the ends of background responses and delivers them, and the routes of endpoints."""
    records = stack.records
    endpoints = Endpoints(records, stack.sealer)
    retries = Retries(settings.retry_seconds, settings.retry_hours * 3600)
    kept_seconds = max(settings.retention_days * DAY_SECONDS, retries.longest + DAY_SECONDS)
    types = {configured_id(each.url): each.events for each in settings.endpoints}
    deliveries = Deliveries(records, endpoints, types, kept_seconds)
    targets = {
        configured_id(each.url): Target(each.url, [each.secret.get_secret_value()]) for each in settings.endpoints
    }
    sender = Sender(stack.address_policy, settings.seconds)
    dispatcher = Dispatcher(records, endpoints, deliveries, targets, sender, retries, stack.telemetry)

    stack.events.add(partial(recorded_of_object, kept_seconds), lambda event: dispatcher.happened(event.id))

    def of_users(_: OpenAIResponsesImpl, limits: RouteAdmission) -> APIRouter:
        look, user, policy = dispatcher.look, stack.current_user, stack.address_policy
        return webhooks_router(EndpointRoutes(endpoints, deliveries, sender, policy, look, settings, user, limits))

    def of_types(_: OpenAIResponsesImpl, limits: RouteAdmission) -> APIRouter:
        return event_types_router(limits)

    return Feature(
        routes=[of_users, of_types],
        views=[PageView("webhooks", "Webhooks", "send", "w")],
        at_end=partial(recorded, kept_seconds),
        on_end=dispatcher.ended,
        connect=lambda impl: dispatcher.work_with(impl.jobs),
        start=dispatcher.start,
        close=dispatcher.stop,
    )


def recorded_of_object(kept_seconds: float, event: ObjectEvent) -> Sequence[Op]:
    """Return the op that records what has become of an object, such as a batch, for this time at most."""
    if event.type not in EVENT_TYPES:
        return ()
    return [Event(event.type, event.id, Hasher(event.owner).owner, event.at).put(event.at + kept_seconds)]


def recorded(kept_seconds: float, ended: Ended) -> Sequence[Op]:
    """Return the op that records the end of a background response, for this time at most."""
    response = ended.response
    kind = f"response.{response['status']}"
    if not response.get("background") or kind not in EVENT_TYPES:
        return ()
    event = Event(kind, response["id"], Hasher(ended.owner).owner, ended.at)
    return [event.put(ended.at + kept_seconds)]
