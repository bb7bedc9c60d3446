"""Conversations: their items, the responses that continue them, and the errors for missing ones."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from openai.types.conversations import Conversation, ConversationDeletedResource, ConversationItem, ConversationItemList

from tests.support.conform import problems
from tests.support.one_pixel import ONE_PIXEL
from tests.support.openai_client import MODEL, NAME, create, function, messages, stored, stream
from tests.support.stack import LiveStack
from tests.support.upstream import Upstream, error, finish, reply, text, tool_call
from tests.support.variants import records
from tests.support.waiting import wait_until
from tests.support.websocket_client import WebSocketClient
from tests.support.wire import Json, Wire, error_of, output_text, roles_and_texts

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("calm")]

UNKNOWN = "conv_000000000000000000000000"
WEATHER = function("weather", "city")
BOTH_WAYS = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


def user(content: str, **fields: Any) -> Any:
    """Return a user's message as a client sends it."""
    return {"role": "user", "content": content, **fields}


def json_of(answer: httpx.Response, kind: Any) -> Json:
    """Check an answer against the SDK's types and return its JSON."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-request-id"]
    body: Json = answer.json()
    assert problems(kind, body) == []
    return body


def begin(wire: Wire, *items: Any, **metadata: str) -> str:
    """Create a conversation with these items and return its id."""
    body = {"items": list(items), "metadata": metadata}
    created = json_of(wire.http.post("/conversations", json=body), Conversation)
    assert created["metadata"] == metadata
    conversation_id: str = created["id"]
    return conversation_id


def items_of(wire: Wire, conversation_id: str) -> list[Json]:
    """Return all items, oldest first, read page by page."""
    found: list[Json] = []
    query = {"order": "asc", "limit": "3"}
    while True:
        answer = wire.http.get(f"/conversations/{conversation_id}/items", params=query)
        page: Json = answer.json()
        if not page["data"]:
            return found
        json_of(answer, ConversationItemList)
        found += page["data"]
        if not page["has_more"]:
            return found
        query["after"] = page["last_id"]


def texts(items: list[Json]) -> list[str]:
    """Return the texts of the messages."""
    return [part["text"] for item in items if item["type"] == "message" for part in item["content"]]


def words(wire: Wire, conversation_id: str) -> list[str]:
    """Return the texts of the messages in a conversation."""
    return texts(items_of(wire, conversation_id))


# -- the conversations themselves -------------------------------------------------------


def test_conversation_is_created_updated_and_deleted(client: openai.OpenAI) -> None:
    conversation = client.conversations.create(metadata={"topic": "demo"}, items=[user("Hello!")])
    assert (conversation.object, conversation.metadata) == ("conversation", {"topic": "demo"})
    assert client.conversations.retrieve(conversation.id) == conversation
    changed = client.conversations.update(conversation.id, metadata={"topic": "other", "more": "1"})
    assert changed == conversation.model_copy(update={"metadata": {"topic": "other", "more": "1"}})
    assert client.conversations.retrieve(conversation.id) == changed
    assert client.conversations.update(conversation.id, metadata=None).metadata == {}
    [item] = client.conversations.items.list(conversation.id).data
    gone = client.conversations.delete(conversation.id)
    assert (gone.id, gone.object, gone.deleted) == (conversation.id, "conversation.deleted", True)
    for call in (
        lambda: client.conversations.retrieve(conversation.id),
        lambda: client.conversations.delete(conversation.id),
        lambda: client.conversations.items.list(conversation.id),
        lambda: client.conversations.items.retrieve(item.id or "", conversation_id=conversation.id),
        lambda: client.responses.create(model=MODEL, input="hi", conversation=conversation.id),
    ):
        with pytest.raises(openai.NotFoundError, match=f"Conversation with id '{conversation.id}' not found."):
            call()


def test_conversation_items_are_added_listed_retrieved_and_deleted(client: openai.OpenAI, wire: Wire) -> None:
    conversation = client.conversations.create()
    assert client.conversations.items.list(conversation.id).data == []
    added = client.conversations.items.create(
        conversation.id,
        items=[user("one"), {"role": "assistant", "content": "two"}, user("three")],
        include=["message.output_text.logprobs"],
    )
    assert (added.has_more, added.first_id, added.last_id) == (False, added.data[0].id, added.data[-1].id)
    more = client.conversations.items.create(conversation.id, items=[user(str(number)) for number in range(20)])
    ids = [item.id for item in [*added.data, *more.data]]
    # The SDK requests page after page.
    assert [item.id for item in client.conversations.items.list(conversation.id, order="asc", limit=4)] == ids
    assert [item.id for item in client.conversations.items.list(conversation.id)] == ids[::-1]
    behind = client.conversations.items.list(conversation.id, after=ids[1] or "", order="asc", limit=2)
    assert ([item.id for item in behind.data], behind.has_more) == (ids[2:4], True)
    one = client.conversations.items.retrieve(ids[1] or "", conversation_id=conversation.id)
    assert one == added.data[1]
    assert client.conversations.items.delete(ids[1] or "", conversation_id=conversation.id) == conversation
    assert [item.id for item in client.conversations.items.list(conversation.id, order="asc")] == [ids[0], *ids[2:]]
    for call in (client.conversations.items.retrieve, client.conversations.items.delete):
        with pytest.raises(openai.NotFoundError, match=str(ids[1])):
            call(ids[1] or "", conversation_id=conversation.id)
    json_of(wire.http.get(f"/conversations/{conversation.id}/items/{ids[0]}"), ConversationItem)


def test_conversation_items_of_every_type_are_kept_with_their_ids(wire: Wire) -> None:
    """Items as a client sends them back. Ids that the client chose are kept."""
    sent: list[Json] = [
        {"type": "message", "role": "developer", "content": "Be kind."},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "?"}, {"type": "input_image", "image_url": ONE_PIXEL}],
        },
        {"type": "reasoning", "id": "rs_mine", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "wet"},
        {"type": "custom_tool_call", "call_id": "call_2", "name": "sql", "input": "select 1"},
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": "1"},
        {"type": "message", "id": "msg_mine", "role": "assistant", "content": "Rain.", "phase": "final_answer"},
    ]
    conversation_id = begin(wire, *sent)
    kept = items_of(wire, conversation_id)
    assert [item["type"] for item in kept] == [item.get("type", "message") for item in sent]
    assert (kept[2]["id"], kept[7]["id"]) == ("rs_mine", "msg_mine")
    # Listed items can be sent again, also into another conversation.
    assert items_of(wire, begin(wire, *kept)) == kept


def test_conversation_item_can_be_referenced_elsewhere(client: openai.OpenAI, wire: Wire, upstream: Upstream) -> None:
    [item] = items_of(wire, begin(wire, user("the code is 1234")))
    reference: Any = {"type": "item_reference", "id": item["id"]}
    assert output_text(create(client, model="local/echo", input=[reference])) == "the code is 1234"
    assert items_of(wire, begin(wire, reference)) == [item]


WRONG: dict[str, tuple[str, Any, str | None, str | None]] = {
    "no object": ("", [1], None, None),
    "no items": ("/items", {}, "items", "missing_required_parameter"),
    "items that are none": ("/items", {"items": "hi"}, "items", "invalid_type"),
    "an item that is none": ("/items", {"items": [user("x"), 7]}, "items[1]", "invalid_type"),
    "an unknown type": ("", {"items": [{"type": "song"}]}, "items[0].type", "invalid_value"),
    "too many items": ("", {"items": [user("x")] * 21}, "items", "array_above_max_length"),
    "too many more": ("/items", {"items": [user("x")] * 21}, "items", "array_above_max_length"),
    "an item twice": ("/items", {"items": [user("x", id="msg_a"), user("y", id="msg_a")]}, "items", None),
    "an item that is there": ("/items", {"items": [user("x", id="msg_there")]}, "items", "invalid_value"),
    "a foreign seal": (
        "",
        {"items": [{"type": "reasoning", "summary": [], "encrypted_content": "x" * 99}]},
        None,
        "invalid_encrypted_content",
    ),
    "metadata that is none": ("", {"metadata": "x"}, "metadata", "invalid_type"),
    "a long value": ("", {"metadata": {"a": "x" * 513}}, "metadata.a", "string_above_max_length"),
    "too much metadata": ("", {"metadata": dict.fromkeys(map(str, range(17)), "")}, "metadata", None),
    "a field of chat requests": ("", {"messages": [user("x")]}, "messages", "unknown_parameter"),
    "an unknown field of items": ("/items", {"items": [user("x")], "item": user("y")}, "item", "unknown_parameter"),
    "an unknown field of an update": ("/", {"metadata": {}, "items": []}, "items", "unknown_parameter"),
    "an update of nothing": ("/", {}, "metadata", "missing_required_parameter"),
}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_conversation_request_changes_nothing(wire: Wire, case: str) -> None:
    path, body, param, code = WRONG[case]
    conversation_id = begin(wire, user("there", id="msg_there"))
    before = items_of(wire, conversation_id)
    answer = wire.http.post(
        f"/conversations/{conversation_id}{path}".rstrip("/") if path else "/conversations", json=body
    )
    output = error_of(answer, 400)
    assert output["param"] == param
    assert code is None or output["code"] == code
    assert items_of(wire, conversation_id) == before


def test_missing_conversation_and_wrong_route_are_errors(wire: Wire) -> None:
    conversation_id = begin(wire, user("x"))
    for path in ("", "/items", "/items/msg_1"):
        output = error_of(wire.http.get(f"/conversations/{UNKNOWN}{path}"), 404)
        assert output["message"] == f"Conversation with id '{UNKNOWN}' not found."
        assert (output["type"], output["param"], output["code"]) == ("invalid_request_error", None, None)
        assert error_of(wire.http.get(f"/conversations/thread_1{path}"), 400)["param"] == "conversation_id"
    for query in ({"limit": "0"}, {"limit": "101"}, {"order": "up"}, {"after": "msg_x"}, {"include[]": "everything"}):
        answer = wire.http.get(f"/conversations/{conversation_id}/items", params=query)
        assert error_of(answer, 400)["param"] == next(iter(query)).removesuffix("[]")
    for path, methods in (("", "POST"), (f"/{conversation_id}", "DELETE, GET, POST")):
        refused = wire.http.put(f"/conversations{path}")
        assert error_of(refused, 405)["code"] == "method_not_supported"
        assert refused.headers["allow"] == methods
    assert "Invalid URL" in error_of(wire.http.post(f"/conversations/{conversation_id}/songs"), 404)["message"]
    json_of(wire.http.delete(f"/conversations/{conversation_id}"), ConversationDeletedResource)


# -- responses in a conversation --------------------------------------------------------


@BOTH_WAYS
def test_conversation_response_sees_and_extends_its_history(
    client: openai.OpenAI, wire: Wire, upstream: Upstream, streamed: bool
) -> None:
    upstream.script(NAME, [reply(text("one")), reply(text("two"), finish("length")), reply(text("three"))])
    conversation = client.conversations.create(items=[{"role": "developer", "content": "Count."}])

    def ask(question: str, name: Any) -> Json:
        params: Json = {"model": MODEL, "input": question, "conversation": name}
        return stream(client, **params).response if streamed else create(client, **params)

    for number, name in enumerate((conversation.id, {"id": conversation.id}, conversation.id)):
        response = ask(f"q{number}", name)
        assert response["conversation"] == {"id": conversation.id}
        assert stored(client, response["id"]) == response
        assert items_of(wire, conversation.id)[-1] == response["output"][-1]
    # Output that was truncated by its length is part of the conversation.
    assert words(wire, conversation.id) == ["Count.", "q0", "one", "q1", "two", "q2", "three"]
    turns = [("system", "Count."), ("user", "q0"), ("assistant", "one"), ("user", "q1"), ("assistant", "two")]
    assert roles_and_texts(messages(upstream)) == [*turns, ("user", "q2")]
    [page] = wire.pages(f"/{response['id']}/input_items", order="asc")
    assert page["data"] == items_of(wire, conversation.id)[:-1]
    # Without input, the response continues from the conversation's items.
    client.conversations.items.create(conversation.id, items=[user("and?")])
    client.responses.create(model=MODEL, conversation=conversation.id)
    assert roles_and_texts(messages(upstream))[-2:] == [("assistant", "three"), ("user", "and?")]


def test_conversation_goes_on_after_a_call_without_an_output(
    client: openai.OpenAI, wire: Wire, upstream: Upstream
) -> None:
    upstream.script(NAME, [reply(tool_call(0, "call_1", "weather", '{"city":"Oslo"}')), reply(text("Rain."))])
    conversation_id = begin(wire)
    request: Json = {"model": MODEL, "tools": [WEATHER], "conversation": conversation_id}
    create(client, input="Weather?", **request)
    with pytest.raises(openai.BadRequestError, match="No tool output found for function call call_1"):
        client.responses.create(input=[{"role": "developer", "content": "Go on."}], **request)
    create(client, input="Well?", **request)
    sent = messages(upstream)
    assert [each["role"] for each in sent] == ["user", "assistant", "tool", "user"]
    assert (sent[2]["tool_call_id"], "interrupted" in sent[2]["content"]) == ("call_1", True)
    kinds = [item["type"] for item in items_of(wire, conversation_id)]
    assert kinds == ["message", "function_call", "message", "message"], "the note is for the model only"
    create(client, input=[{"type": "function_call_output", "call_id": "call_1", "output": "wet"}], **request)
    assert [each["content"] for each in messages(upstream) if each["role"] == "tool"] == ["wet"], "it may come late"


def test_deleted_conversation_item_is_not_sent_to_the_model(
    client: openai.OpenAI, wire: Wire, upstream: Upstream
) -> None:
    conversation_id = begin(wire, user("secret"), user("plain"))
    secret, _ = items_of(wire, conversation_id)
    first = create(client, model="local/echo", input="x", conversation=conversation_id)
    json_of(wire.http.delete(f"/conversations/{conversation_id}/items/{secret['id']}"), Conversation)
    create(client, model="local/echo", input="y", conversation=conversation_id)
    assert "secret" not in str(upstream.requests("echo")[-1].body)
    create(client, model="local/echo", input="z", previous_response_id=first["id"])
    assert roles_and_texts(upstream.requests("echo")[-1].body["messages"])[:2] == [("user", "plain"), ("user", "x")]
    # A response with `previous_response_id` does not extend the conversation.
    assert words(wire, conversation_id) == ["plain", "x", "x", "y", "y"]


def test_deleted_conversation_leaves_no_records(
    client: openai.OpenAI, stack: LiveStack, wire: Wire, upstream: Upstream
) -> None:
    database = stack.state_dir / "responses.db"
    before = records(database).keys()
    conversation_id = begin(wire, user("hello"), topic="demo")
    response = create(client, model="local/echo", input="asked", conversation=conversation_id)
    wire.http.delete(f"/conversations/{conversation_id}")
    assert stored(client, response["id"]) == response
    [page] = wire.pages(f"/{response['id']}/input_items")
    assert texts(page["data"]) == ["asked"]
    wire.http.delete(f"/responses/{response['id']}")
    assert [key for key in records(database).keys() - before if key[0] in "rnbfilgcmaw"] == []


@BOTH_WAYS
def test_conversation_keeps_items_of_unstored_response(
    client: openai.OpenAI, wire: Wire, upstream: Upstream, streamed: bool
) -> None:
    upstream.script(NAME, reply(text("one")))
    conversation_id = begin(wire)
    params: Json = {"model": MODEL, "input": "q", "conversation": conversation_id, "store": False}
    response = stream(client, **params).response if streamed else create(client, **params)
    assert response["conversation"] == {"id": conversation_id}
    assert words(wire, conversation_id) == ["q", "one"]
    assert error_of(wire.get(f"/{response['id']}"), 404)


def test_websocket_conversation_keeps_unstored_turns(stack: LiveStack, wire: Wire, upstream: Upstream) -> None:
    """Responses that continue from an unstored response, stored or not, see the whole history before it."""
    upstream.script(NAME, [reply(text("one")), reply(text("two")), reply(text("three")), reply(text("four"))])
    conversation_id = begin(wire, user("hello"))
    with WebSocketClient(stack) as websocket:
        websocket.ask(model=MODEL, input="q1", conversation=conversation_id)
        websocket.response()
        websocket.ask(model=MODEL, input="q2", conversation=conversation_id, store=False)
        branch = websocket.response()
        assert words(wire, conversation_id) == ["hello", "q1", "one", "q2", "two"]
        expected = ["hello", "q1", "one", "q2", "two"]
        for store in (False, False, True):
            websocket.ask(model=MODEL, input="aside", previous_response_id=branch["id"], store=store)
            branch = websocket.response()
            expected.append("aside")
            assert [words for _, words in roles_and_texts(messages(upstream))] == expected
            expected.append(output_text(branch))
    assert len(words(wire, conversation_id)) == 5
    [page] = wire.pages(f"/{branch['id']}/input_items", order="asc")
    assert texts(page["data"]) == expected[:-1]


@BOTH_WAYS
def test_failed_response_adds_nothing_to_its_conversation(wire: Wire, upstream: Upstream, streamed: bool) -> None:
    upstream.script(NAME, [error(400, "This is not supported."), reply(text("half"), end="drop")])
    conversation_id = begin(wire, user("hello"))
    body = {"model": MODEL, "input": "q", "conversation": conversation_id, "stream": streamed}
    assert error_of(wire.post(body), 400)
    wire.post(body)
    assert words(wire, conversation_id) == ["hello"]


def test_response_with_invalid_conversation_is_refused(wire: Wire, upstream: Upstream) -> None:
    response = wire.create(model="local/echo", input="x")
    both = {"conversation": begin(wire), "previous_response_id": response["id"]}
    for streamed in (False, True):
        body = {"model": "local/echo", "input": "y", "stream": streamed}
        output = error_of(wire.post(body | both), 400)
        assert (output["param"], output["code"]) == ("previous_response_id", "mutually_exclusive_parameters")
        for name in (UNKNOWN, {"id": UNKNOWN}):
            output = error_of(wire.post(body | {"conversation": name}), 404)
            assert output["message"] == f"Conversation with id '{UNKNOWN}' not found."
            assert (output["type"], output["param"], output["code"]) == ("invalid_request_error", None, None)
        output = error_of(wire.post(body | {"conversation": "thread_1"}), 400)
        assert (output["param"], output["code"]) == ("conversation", "invalid_value")
    output = error_of(wire.post({"model": "local/echo", "conversation": begin(wire)}), 400)
    assert (output["param"], output["code"]) == ("input", "missing_required_parameter")
    assert len(upstream.requests("echo")) == 1


@pytest.mark.parametrize("body", [{}, {"stream": True}, {"store": False}, {"background": True}], ids=str)
def test_two_concurrent_responses_both_extend_the_conversation(wire: Wire, upstream: Upstream, body: Json) -> None:
    """Neither sees the other's items, and each question is followed by its answer."""
    upstream.script(NAME, reply(text("one ", "two"), hold=1))
    upstream.script("other", reply(text("three ", "four"), hold=1))
    conversation_id = begin(wire, user("hello"))

    def ask(model: str) -> int:
        request = {"model": f"local/{model}", "input": f"to {model}", "conversation": conversation_id, **body}
        return wire.post(request).status_code

    with ThreadPoolExecutor(2) as clients:
        answers = clients.map(ask, (NAME, "other"))
        for model in (NAME, "other"):
            upstream.wait_for(model, chunks=1)
        upstream.release("other")
        wait_until(lambda: len(words(wire, conversation_id)) == 3)
        upstream.release(NAME)
        assert list(answers) == [200, 200]
    wait_until(lambda: len(words(wire, conversation_id)) == 5)
    assert words(wire, conversation_id) == ["hello", "to other", "three four", f"to {NAME}", "one two"]
    for model in (NAME, "other"):
        assert roles_and_texts(upstream.requests(model)[0].body["messages"]) == [
            ("user", "hello"),
            ("user", f"to {model}"),
        ]


def test_many_concurrent_responses_lose_no_conversation_items(wire: Wire, upstream: Upstream) -> None:
    conversation_id = begin(wire)

    def ask(number: int) -> int:
        body = {"model": "local/echo", "input": f"number {number}", "conversation": conversation_id}
        return wire.post(body | {"stream": number % 2 == 0, "store": number % 3 > 0}).status_code

    with ThreadPoolExecutor(12) as clients:
        assert set(clients.map(ask, range(24))) == {200}
    received = words(wire, conversation_id)
    assert received[::2] == received[1::2]
    assert sorted(received[::2]) == sorted(f"number {number}" for number in range(24))


@BOTH_WAYS
def test_repeated_idempotency_key_extends_conversation_once(wire: Wire, upstream: Upstream, streamed: bool) -> None:
    upstream.script(NAME, reply(text("one")))
    conversation_id = begin(wire)
    body = {"model": MODEL, "input": "q", "conversation": conversation_id, "stream": streamed}

    def send(_: int) -> int:
        headers = {"idempotency-key": f"turn-{conversation_id}"}
        return wire.http.post("/responses", json=body, headers=headers).status_code

    with ThreadPoolExecutor(4) as clients:
        assert set(clients.map(send, range(4))) == {200}
    assert words(wire, conversation_id) == ["q", "one"]
    assert len(upstream.requests(NAME)) == 1


def test_cancelled_response_adds_nothing_to_its_conversation(wire: Wire, upstream: Upstream) -> None:
    upstream.script(NAME, reply(text("one ", "two"), hold=1))
    conversation_id = begin(wire, user("hello"))
    response = wire.create(model=MODEL, input="q", conversation=conversation_id, background=True)
    upstream.wait_for(NAME, chunks=1)
    assert wire.http.post(f"/responses/{response['id']}/cancel").json()["status"] == "cancelled"
    assert words(wire, conversation_id) == ["hello"]
