"""Endpoints and deliveries as the routes show them: `webhook_endpoint` of OpenAI, and what it does not have."""

from __future__ import annotations

from ...core.types import Json
from .rows import Delivery, Endpoint, State


def endpoint_object(endpoint: Endpoint, state: State | None) -> Json:
    """Return an endpoint, without its secret."""
    return {
        "object": "webhook_endpoint",
        "id": endpoint.id,
        "name": endpoint.name,
        "url": endpoint.url,
        "event_types": list(endpoint.event_types),
        "created_at": endpoint.created_at,
        "updated_at": endpoint.updated_at,
        "signing_secret_hint": endpoint.secrets[0].hint,
        "disabled_at": int(state.disabled_at) if state and state.disabled_at else None,
        "disabled_reason": state.reason if state else None,
    }


def delivery_object(delivery: Delivery) -> Json:
    """Return a delivery with the answers to its last attempts."""
    return {
        "object": "webhook_endpoint.delivery",
        "id": delivery.id,
        "webhook_endpoint_id": delivery.endpoint,
        "event": delivery.body,
        "status": delivery.status,
        "created_at": int(delivery.created_at),
        "attempts": [{"at": each.at, "status_code": each.status, "answer": each.text} for each in delivery.attempts],
    }
