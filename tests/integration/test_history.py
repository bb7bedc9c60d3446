"""Histories of responses: chains, forks, histories that clients send again, and item references."""

import secrets
from typing import Any

import openai
import pytest

from tests.support.openai_client import function
from tests.support.seed import seed
from tests.support.stack import LiveStack
from tests.support.upstream import Upstream, finish, reasoning, reply, text, tool_call
from tests.support.variants import records, stored_bytes, text_of_new_records
from tests.support.wire import Json, Wire, error_of, final, output_text, roles_and_texts

pytestmark = pytest.mark.live

TURNS = 40
NOISE = 400  # characters of a question and of its answer
WEATHER = function("weather", "city")


def noise(size: int) -> str:
    """Return random hex digits, which compression only halves."""
    return secrets.token_hex(size // 2)


def sent(upstream: Upstream, model: str) -> list[tuple[str, str]]:
    """Return the messages of the latest request for a model."""
    return roles_and_texts(upstream.requests(model)[-1].body["messages"])


def test_duplicate_item_reference_is_400(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script("once", reply(text("a")))
    first = client.responses.create(model="local/once", input="hi")
    again: Any = {"type": "item_reference", "id": first.output[0].id}
    for params in ({"input": [again], "previous_response_id": first.id}, {"input": [again, again]}):
        with pytest.raises(openai.BadRequestError, match=f"Duplicate item found with id {first.output[0].id}") as error:
            client.responses.create(model="local/once", **params)
        assert error.value.param == "input"
    assert len(upstream.requests("once")) == 1


def test_chain_carries_input_and_output_but_not_instructions(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script("chain", [reply(text("one")), reply(text("two")), reply(text("three"))])
    first = client.responses.create(model="local/chain", input="a", instructions="WebSocketClient like a pirate.")
    second = client.responses.create(model="local/chain", input="b", previous_response_id=first.id)
    assert sent(upstream, "chain") == [("user", "a"), ("assistant", "one"), ("user", "b")]
    assert second.instructions is None
    assert second.previous_response_id == first.id

    parts: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": "c"}, {"type": "input_text", "text": "d"}]}
    ]
    with client.responses.stream(
        model="local/chain", input=parts, instructions="Be brief.", previous_response_id=second.id
    ) as stream:
        third = stream.get_final_response()
    assert third.output_text == "three"
    assert sent(upstream, "chain") == [
        ("system", "Be brief."),
        ("user", "a"),
        ("assistant", "one"),
        ("user", "b"),
        ("assistant", "two"),
        ("user", "c\n\nd"),
    ]


def test_chain_carries_calls_and_their_outputs(client: openai.OpenAI, upstream: Upstream) -> None:
    calls = [*text("Let me look."), *tool_call(0, "call_a", "weather", '{"city":"Oslo"}')]
    calls += tool_call(1, "call_b", "weather", '{"city":"Rome"}')
    upstream.script("tools", [reply(calls), reply(text("Cold and warm.")), reply(text("Bye."))])
    first = client.responses.create(model="local/tools", input="Weather?", tools=[WEATHER])
    outputs: Any = [
        {"type": "function_call_output", "call_id": "call_a", "output": "-3"},
        {"type": "function_call_output", "call_id": "call_b", "output": "24"},
    ]
    second = client.responses.create(model="local/tools", input=outputs, tools=[WEATHER], previous_response_id=first.id)
    client.responses.create(model="local/tools", input="Thanks", previous_response_id=second.id)
    messages = upstream.requests("tools")[-1].body["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool", "assistant", "user"]
    assert roles_and_texts(messages)[1] == ("assistant", "Let me look.")
    assert [(call["id"], call["function"]) for call in messages[1]["tool_calls"]] == [
        ("call_a", {"name": "weather", "arguments": '{"city":"Oslo"}'}),
        ("call_b", {"name": "weather", "arguments": '{"city":"Rome"}'}),
    ]
    assert [(message["tool_call_id"], message["content"]) for message in messages[2:4]] == [
        ("call_a", "-3"),
        ("call_b", "24"),
    ]


def test_two_branches_of_one_response_have_separate_histories(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script("fork", [reply(text(word)) for word in ("root", "left", "right", "left-2", "right-2")])
    root = client.responses.create(model="local/fork", input="0")
    left = client.responses.create(model="local/fork", input="L", previous_response_id=root.id)
    right = client.responses.create(model="local/fork", input="R", previous_response_id=root.id)
    client.responses.create(model="local/fork", input="L2", previous_response_id=left.id)
    assert [line for _, line in sent(upstream, "fork")] == ["0", "root", "L", "left", "L2"]
    client.responses.create(model="local/fork", input="R2", previous_response_id=right.id)
    assert [line for _, line in sent(upstream, "fork")] == ["0", "root", "R", "right", "R2"]


def test_deleting_a_response_keeps_the_history_of_its_successors(client: openai.OpenAI, upstream: Upstream) -> None:
    first = client.responses.create(model="local/echo", input="alpha")
    second = client.responses.create(model="local/echo", input="beta", previous_response_id=first.id)
    client.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="local/echo", input="gamma", previous_response_id=first.id)
    assert refused.value.code == "previous_response_not_found"
    assert refused.value.param == "previous_response_id"
    client.responses.create(model="local/echo", input="gamma", previous_response_id=second.id)
    assert [line for _, line in sent(upstream, "echo")] == ["alpha", "alpha", "beta", "beta", "gamma"]
    kept = [item.to_dict() for item in client.responses.input_items.list(second.id, order="asc")]
    assert [item["content"][0]["text"] for item in kept] == ["alpha", "alpha", "beta"]  # type: ignore[index]


def test_deletion_drops_records_that_no_other_response_uses(wire: Wire, stack: LiveStack) -> None:
    database = stack.state_dir / "responses.db"
    before = records(database).keys()
    words = {name: noise(64) for name in ("root", "left", "right", "tools")}
    body = {"model": "local/echo", "instructions": words["tools"] + noise(1000)}

    def kept() -> set[str]:
        output = text_of_new_records(database, before)
        return {name for name, each in words.items() if each in output}

    created: dict[str, str] = {}
    for name in ("root", "left", "right"):
        created[name] = wire.create(**body, input=words[name], previous_response_id=created.get("root"))["id"]
    assert kept() == {"root", "left", "right", "tools"}
    for name, still in (("root", set(words)), ("left", {"root", "right", "tools"}), ("right", set[str]())):
        assert wire.http.delete(f"/responses/{created[name]}").status_code == 200
        assert kept() == still
    # The index entries of lists stay until a sweep.
    assert {key for key in records(database).keys() - before if not key.startswith("x/")} == set()


# -- long conversations ----------------------------------------------------------------


def check_is_linear(sizes: list[int], more: int = 800) -> None:
    """Check that the bytes stored per turn do not grow, and are at most `more` than the turn's text."""
    first, second = sum(sizes[1 : TURNS // 2]), sum(sizes[TURNS // 2 + 1 :])
    assert second < 1.2 * first, sizes
    assert second / (TURNS // 2 - 1) < 2 * NOISE + more, sizes


def test_long_chain_stores_only_new_items_per_turn(wire: Wire, stack: LiveStack, upstream: Upstream) -> None:
    """The history, and tools and instructions that are repeated in every turn, are stored once."""
    database = stack.state_dir / "responses.db"
    body: Json = {
        "model": "local/echo",
        "instructions": noise(10_000),
        "tools": [function(f"tool{number}", "x", description=noise(1_000)) for number in range(20)],
        "previous_response_id": None,
    }
    lines, sizes, size = [], [], stored_bytes(database)
    for turn in range(TURNS):
        lines += [f"{turn} {noise(NOISE)}"] * 2
        response = wire.create(**body, input=lines[-1])
        assert output_text(response) == lines[-1]
        assert (response["tools"], response["instructions"]) == (body["tools"], body["instructions"])
        body["previous_response_id"] = response["id"]
        sizes.append(stored_bytes(database) - size)
        size += sizes[-1]
    assert [line for _, line in sent(upstream, "echo")][1:] == lines[:-1]
    check_is_linear(sizes)


def test_history_resent_by_the_client_is_stored_once(wire: Wire, stack: LiveStack) -> None:
    """The client keeps the history itself, as in the SDK's documentation, with `store: true`."""
    database = stack.state_dir / "responses.db"
    conversation: list[Json] = []
    sizes, size = [], stored_bytes(database)
    for turn in range(TURNS):
        conversation.append({"role": "user", "content": f"{turn} {noise(NOISE)}"})
        response = wire.create(model="local/echo", input=conversation, store=True)
        conversation += response["output"]
        sizes.append(stored_bytes(database) - size)
        size += sizes[-1]
    # Each request has ids of its own for the earlier questions.
    check_is_linear(sizes, more=1200)
    listed = wire.get(f"/{response['id']}/input_items", order="asc", limit=100).json()["data"]
    assert len(listed) == 2 * TURNS - 1
    assert listed[1::2] == conversation[1:-1:2]


@pytest.mark.extended
def test_chain_of_a_thousand_turns_can_be_continued(wire: Wire, stack: LiveStack, upstream: Upstream) -> None:
    """Another process has stored the turns, as another worker of the same server would."""
    database = stack.state_dir / "responses.db"
    turns = [(f"question {number}", f"answer {number}") for number in range(1_000)]
    [*_, last] = seed(database, turns)
    before = stored_bytes(database)
    upstream.script("long", [reply(text("A thousand and one.")), reply(text("Yes."))])
    first = final(wire.stream(model="local/long", input="How many?", previous_response_id=last["id"]))
    second = wire.create(model="local/long", input="Sure?", previous_response_id=first["id"])
    expected = [line for turn in turns for line in turn] + ["How many?", "A thousand and one.", "Sure?"]
    assert [line for _, line in sent(upstream, "long")] == expected
    assert stored_bytes(database) - before < 10_000

    for order, lines in (("asc", expected), ("desc", expected[::-1])):
        page = wire.get(f"/{second['id']}/input_items", limit=100, order=order).json()
        assert [item["content"][0]["text"] for item in page["data"]] == lines[:100]
        assert page["has_more"]


# -- items by id -----------------------------------------------------------------------


def test_item_references_are_resolved_in_the_input(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(
        "refer",
        [reply(reasoning("hm"), text("forty-two"), tool_call(0, "call_1", "weather", "{}")), reply(text("fine"))],
    )
    question: Any = [{"role": "user", "content": "The question?", "id": "msg_of_the_question"}]
    first = client.responses.create(model="local/refer", input=question, tools=[WEATHER])
    stored = client.responses.input_items.list(first.id).data[0]
    references: Any = [{"type": "item_reference", "id": item.id} for item in [stored, *first.output]]
    answer: Any = {"type": "function_call_output", "call_id": "call_1", "output": "5"}
    second = client.responses.create(model="local/refer", input=[*references, answer], tools=[WEATHER])
    messages = upstream.requests("refer")[-1].body["messages"]
    assert roles_and_texts(messages) == [("user", "The question?"), ("assistant", "forty-two"), ("tool", "5")]
    assert [call["id"] for call in messages[1]["tool_calls"]] == ["call_1"]
    listed = client.responses.input_items.list(second.id, order="asc").data
    assert [item.type for item in listed] == [
        "message",
        "reasoning",
        "message",
        "function_call",
        "function_call_output",
    ]

    # The output of a response with item references can be referenced, too.
    thanks: Any = [{"id": second.output[0].id}, {"role": "user", "content": "Thanks"}]
    client.responses.create(model="local/refer", input=thanks)
    assert sent(upstream, "refer") == [("assistant", "fine"), ("user", "Thanks")]


def test_reference_to_missing_or_unstored_item_is_404(wire: Wire) -> None:
    unstored = wire.create(model="local/echo", input="secret", store=False)
    for unknown in ("msg_000000000000000000000000", unstored["output"][0]["id"]):
        error = error_of(wire.post({"model": "local/echo", "input": [{"type": "item_reference", "id": unknown}]}), 404)
        assert error["type"] == "invalid_request_error"
        assert error["param"] == "input"
        assert unknown in error["message"]


# -- unstored and incomplete responses ------------------------------------------------------------------


def test_two_responses_with_the_same_words_have_ids_of_their_own(client: openai.OpenAI, upstream: Upstream) -> None:
    call = reply(tool_call(0, "call_1", "weather", '{"city": "Oslo"}'), finish("tool_calls"))
    upstream.script("twins", [reply(text("Hello.")), call] * 3 + [reply(text("Done."))] * 6)
    listed: set[str] = set()
    for _ in range(3):
        first = client.responses.create(model="local/twins", input="Greet me.")
        questions: Any = [{"role": "user", "content": "And the weather?"}]
        second = client.responses.create(
            model="local/twins", input=questions, previous_response_id=first.id, tools=[WEATHER]
        )
        items = list(client.responses.input_items.list(second.id, order="asc"))
        assert items[1].id == first.output[0].id
        assert [item.id for item in client.responses.input_items.list(first.id)] == [items[0].id]
        ids = {item.id for item in [*items, *second.output] if item.id}
        assert len(ids) == 4
        assert not listed & ids
        listed |= ids
    for deleted in (None, first.id, second.id):
        if deleted:
            client.responses.delete(deleted)
        references: Any = [{"type": "item_reference", "id": items[0].id}, {"type": "item_reference", "id": items[1].id}]
        if deleted != second.id:
            client.responses.create(model="local/twins", input=references, store=False)
            assert sent(upstream, "twins") == [("user", "Greet me."), ("assistant", "Hello.")]
    with pytest.raises(openai.NotFoundError, match=items[0].id):
        client.responses.create(model="local/twins", input=references)


def test_continuing_an_unstored_response_is_400(wire: Wire) -> None:
    body = {"model": "local/echo", "input": "secret", "store": False}
    for response in (wire.create(**body), final(wire.stream(**body))):
        error_of(wire.get(f"/{response['id']}"), 404)
        error = error_of(wire.post(body | {"previous_response_id": response["id"]}), 400)
        assert (error["code"], error["param"]) == ("previous_response_not_found", "previous_response_id")


def test_unstored_response_can_continue_a_stored_one(client: openai.OpenAI, upstream: Upstream) -> None:
    first = client.responses.create(model="local/echo", input="alpha")
    second = client.responses.create(model="local/echo", input="beta", previous_response_id=first.id, store=False)
    assert second.output_text == "beta"
    assert [line for _, line in sent(upstream, "echo")] == ["alpha", "alpha", "beta"]


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        (reply(text("Half an ", "answer"), end="error_frame"), "failed"),
        (reply(text("Half an ", "answer"), finish("length")), "incomplete"),
    ],
    ids=["failed", "incomplete"],
)
def test_response_that_ended_early_can_be_continued(wire: Wire, upstream: Upstream, ending: Any, status: str) -> None:
    upstream.script("early", [ending, reply(text("The rest."))])
    early = final(wire.stream(model="local/early", input="Go."))
    assert (early["status"], output_text(early)) == (status, "Half an answer")
    assert wire.retrieve(early["id"]) == early
    late = wire.create(model="local/early", input="Go on.", previous_response_id=early["id"])
    assert output_text(late) == "The rest."
    assert sent(upstream, "early") == [("user", "Go."), ("assistant", "Half an answer"), ("user", "Go on.")]


def test_truncated_call_is_left_out_of_the_history(wire: Wire, upstream: Upstream) -> None:
    """A truncated call cannot have an output, so the model does not see it."""
    cut = reply(text("Let me see."), tool_call(0, "call_1", "weather", '{"cit'), finish("length"))
    upstream.script("cut", [cut, reply(text("Yes?"))])
    early = final(wire.stream(model="local/cut", input="Weather?", tools=[WEATHER]))
    assert [item["status"] for item in early["output"]][-1] == "incomplete"
    wire.create(model="local/cut", input="Never mind.", previous_response_id=early["id"])
    assert sent(upstream, "cut") == [("user", "Weather?"), ("assistant", "Let me see."), ("user", "Never mind.")]
    assert "tool_calls" not in upstream.requests("cut")[-1].body["messages"][1]
