"""Webhooks of a live stack, with the client and the verification of the `openai` package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import openai
import pytest
from openai.types.webhooks import WebhookEndpointWithSecret

from tests.support.clients import node_client
from tests.support.stack import Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess, finish, reply, text
from tests.support.user_stack import TOKENS, client_of, user_stack
from tests.support.variants import Json, responses_config
from tests.support.waiting import wait_until
from tests.support.web import Answer, ReceivedRequest, Web
from tests.support.wire import Wire

pytestmark = pytest.mark.live

MODEL: Final = "local/hooked"


@pytest.fixture(scope="module")
def served(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveStack]:
    """A stack with users and webhooks, which may reach this machine."""

    def change(config: Json) -> None:
        responses_config(config)["webhooks"] = {"allow_http": True, "retry_seconds": 0.01}

    with user_stack(host, stack_env, upstream_process, tmp_path_factory.mktemp("webhooks"), change) as live:
        yield live


@pytest.fixture
def receiver() -> Iterator[Web]:
    with Web() as web:
        web.answer_all = lambda _: Answer(b"ok")
        yield web


def unwrapped(client: openai.OpenAI, request: ReceivedRequest, endpoint: WebhookEndpointWithSecret) -> Any:
    return client.webhooks.unwrap(request.body, request.headers, secret=endpoint.signing_secret)


def test_background_response_is_delivered_to_a_receiver_that_fails_twice(
    served: LiveStack, upstream: Upstream, receiver: Web
) -> None:
    upstream.script("hooked", reply(text("Hello")))
    answers = [Answer(b"", 500), Answer(b"", 503), Answer(b"ok")]
    receiver.answer_all = lambda _: answers.pop(0)
    with client_of(served, "ada") as ada, Wire(served, token=TOKENS["ada"]) as wire:
        types: Any = ["response.completed", "response.failed"]
        endpoint = ada.webhooks.create(name="Jobs", url=receiver.url("/hook"), event_types=types)
        created = ada.responses.create(model=MODEL, input="Hi", background=True)
        ada.responses.create(model=MODEL, input="Hi")
        path = f"/webhook_endpoints/{endpoint.id}/deliveries"
        wait_until(lambda: [each["status"] for each in wire.http.get(path).json()["data"]] == ["delivered"])
        events = [unwrapped(ada, each, endpoint) for each in receiver.seen]
        [delivery] = wire.http.get(path).json()["data"]

        answers.append(Answer(b"again"))
        assert wire.http.post(f"{path}/{delivery['id']}/resend").json()["status"] == "waiting"
        wait_until(lambda: len(receiver.seen) == 4)
        ada.webhooks.delete(endpoint.id)

    assert [(each.type, each.data.id) for each in events] == [("response.completed", created.id)] * 3
    assert [each["status_code"] for each in delivery["attempts"]] == [500, 503, 200]
    assert {each.headers["webhook-id"] for each in receiver.seen} == {delivery["id"]}


def test_each_end_is_delivered_as_the_event_of_the_openai_package(
    served: LiveStack, upstream: Upstream, receiver: Web
) -> None:
    upstream.script("broken", reply(text("Hello"), end="error_frame"))
    upstream.script("cut", reply(text("Hello"), finish("length")))
    upstream.script("held", reply(text("a", "b"), hold=1))
    with client_of(served, "ada") as ada:
        known: Any = ada.webhooks.event_types.list().data
        types: Any = [each for each in known if each.startswith("response.")]
        endpoint = ada.webhooks.create(name="Jobs", url=receiver.url("/hook"), event_types=types)
        ids = {
            name: ada.responses.create(model=f"local/{name}", input="Hi", background=True).id
            for name in ("broken", "cut", "held", "echo")
        }
        upstream.wait_for("held")
        ada.responses.cancel(ids["held"])
        wait_until(lambda: len(receiver.seen) == len(ids))
        ends: list[Any] = [unwrapped(ada, each, endpoint) for each in receiver.seen]
        for each in known:
            ada.webhooks.test(endpoint.id, event_type=each)
        tests = [unwrapped(ada, each, endpoint) for each in receiver.seen[len(ids) :]]
        shown = {each: ada.responses.retrieve(each).status for each in ids.values()}
        ada.webhooks.delete(endpoint.id)
    assert {each.data.id: each.type for each in ends} == {each: f"response.{status}" for each, status in shown.items()}
    assert list(shown.values()) == ["failed", "incomplete", "cancelled", "completed"]
    assert {each.data.id.split("_")[0] for each in tests if each.type.startswith("batch.")} == {"batch"}
    # Each has a class of its own.
    assert [type(each).__name__.removesuffix("WebhookEvent") for each in tests] == [
        each.type.title().replace(".", "") for each in tests
    ]


def test_node_client_unwraps_a_delivery(served: LiveStack, receiver: Web, tmp_path: Path) -> None:
    with client_of(served, "ada") as ada:
        endpoint = ada.webhooks.create(name="Jobs", url=receiver.url("/hook"), event_types=["response.completed"])
        created = ada.responses.create(model="local/echo", input="Hi", background=True)
        wait_until(lambda: bool(receiver.seen))
        ada.webhooks.delete(endpoint.id)
    [sent] = receiver.seen
    delivery = tmp_path / "delivery.json"
    delivery.write_text(json.dumps({"body": sent.body.decode(), "headers": dict(sent.headers)}))
    arguments = ("unwrapped", str(delivery), endpoint.signing_secret)
    finished = node_client("openai-node", "with_openai_node_work.mjs", served, tmp_path, *arguments)
    assert finished.result == ["response.completed", created.id, "InvalidWebhookSignatureError"]


def test_routes_of_endpoints_are_those_of_the_openai_package(served: LiveStack, receiver: Web) -> None:
    with client_of(served, "ada") as ada:
        created = ada.webhooks.create(name="A", url=receiver.url("/a"), event_types=["response.completed"])
        assert created.signing_secret.startswith("whsec_")
        assert created.signing_secret_hint == f"whsec_...{created.signing_secret[-4:]}"
        other = ada.webhooks.create(name="B", url=receiver.url("/b"), event_types=["response.failed"])
        first = ada.webhooks.list(limit=1)
        assert ([each.id for each in first.data], first.has_more) == ([other.id], True)
        assert [each.id for each in ada.webhooks.list(after=other.id).data] == [created.id]
        changed = ada.webhooks.update(created.id, name="C", event_types=["response.incomplete"])
        assert (changed.name, changed.event_types, changed.url) == ("C", ["response.incomplete"], created.url)
        found = ada.webhooks.retrieve(created.id)
        assert found == changed
        assert not hasattr(found, "signing_secret")

        rotated = ada.webhooks.rotate_secret(created.id, keep_old_secret_active_for_24_hours=True)
        tested = ada.webhooks.test(created.id, event_type="response.cancelled")
        assert (tested.status_code, tested.success, tested.webhook_endpoint_id) == (200, True, created.id)
        for each in (created, rotated):
            assert unwrapped(ada, receiver.seen[0], each).type == "response.cancelled"
        assert "response.completed" in ada.webhooks.event_types.list().data
        for endpoint in (created, other):
            assert ada.webhooks.delete(endpoint.id).deleted
        assert ada.webhooks.list().data == []


def test_endpoint_of_another_user_is_not_found(served: LiveStack, receiver: Web) -> None:
    with client_of(served, "ada") as ada, client_of(served, "bob") as bob:
        endpoint = ada.webhooks.create(name="A", url=receiver.url("/a"), event_types=["response.completed"])
        assert bob.webhooks.list().data == []
        for call in (bob.webhooks.retrieve, bob.webhooks.delete, bob.webhooks.rotate_secret):
            with pytest.raises(openai.NotFoundError):
                call(endpoint.id)
        ada.webhooks.delete(endpoint.id)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"name": ""}, "name"),
        ({"url": "ftp://a.example"}, "url"),
        ({"url": "https://user:word@a.example"}, "url"),
        ({"url": "https://[::1"}, "url"),
        ({"event_types": []}, "event_types"),
        ({"event_types": ["thread.completed"]}, "event_types"),
        ({"event_types": [{}]}, "event_types"),
        ({"color": "red"}, "color"),
        ({"name": None}, "name"),
    ],
)
def test_wrong_endpoint_is_refused(served: LiveStack, body: Json, param: str) -> None:
    good = {"name": "A", "url": "https://a.example", "event_types": ["response.completed"]}
    with Wire(served, token=TOKENS["ada"]) as wire:
        answer = wire.http.post("/webhook_endpoints", json=good | body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_endpoint_at_a_private_address_is_refused(served: LiveStack, receiver: Web) -> None:
    private = "https://10.0.0.1/hook"
    with client_of(served, "ada") as ada:
        with pytest.raises(openai.BadRequestError, match=r"fetch\.allowed_networks"):
            ada.webhooks.create(name="A", url=private, event_types=["response.completed"])
        endpoint = ada.webhooks.create(name="A", url=receiver.url("/hook"), event_types=["response.completed"])
        with pytest.raises(openai.BadRequestError, match=r"fetch\.allowed_networks"):
            ada.webhooks.update(endpoint.id, url=private)
        ada.webhooks.delete(endpoint.id)
