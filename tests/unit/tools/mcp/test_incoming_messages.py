"""The messages of a server that are passed on, and their limits."""

from typing import Any

import orjson
import pytest

from llama_stack_responses.tools.mcp.failure import Failure
from llama_stack_responses.tools.mcp.incoming_messages import IncomingLimits, IncomingMessages, LargeTexts
from tests.support.reservations import unlimited

type Json = dict[str, Any]


@pytest.fixture
def texts() -> LargeTexts:
    return LargeTexts()


@pytest.fixture
def incoming(texts: LargeTexts) -> IncomingMessages:
    limits = IncomingLimits(answer_bytes=1_000_000, answer_values=1_000, session_bytes=1_000)
    messages = IncomingMessages(limits, texts, unlimited())
    messages.expect(1)
    return messages


def answer(result: Any, request_id: Any = 1) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "id": request_id, "result": result})


def request(method: Any, **members: Any) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "method": method, **members})


async def passed(incoming: IncomingMessages, text: bytes) -> Any:
    plain = await incoming.passed(text)
    return plain and orjson.loads(plain)


async def test_answer_passes_once(incoming: IncomingMessages) -> None:
    assert await passed(incoming, answer({"a": 1})) == {"jsonrpc": "2.0", "id": 1, "result": {"a": 1}}
    assert await passed(incoming, answer({"a": 1})) is None


@pytest.mark.parametrize("request_id", [2, "1", -1, 2**63])
async def test_answer_without_request_is_dropped(incoming: IncomingMessages, request_id: Any) -> None:
    assert await passed(incoming, answer({}, request_id)) is None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b"null",
        b'"x"',
        b"{",
        b"\xff",
        b'{"id": 1}',
        b'{"id": 1, "result": []}',
        b'{"id": 1, "error": "no"}',
        b'{"id": [], "result": {}}',
        b'{"id": null, "result": {}}',
        b'{"result": {}}',
        b'{"id": 1, "result": {"a": NaN}}',
        b'{"id": 1, "result": {"a": 1e400}}',
        b'{"id": 1, "result": {"a": "\\ud800"}}',
        answer({}, "x" * 101),
    ],
)
async def test_invalid_message_fails(incoming: IncomingMessages, text: bytes) -> None:
    with pytest.raises(Failure, match="does not follow the protocol"):
        await incoming.passed(text)


@pytest.mark.parametrize(
    "result", [{"a": [0] * 1_000}, {"a": [[]] * 700}, orjson.loads(b'{"a":' * 70 + b"1" + b"}" * 70)]
)
async def test_message_with_too_many_or_too_deep_values_fails(incoming: IncomingMessages, result: Json) -> None:
    with pytest.raises(Failure, match="larger than"):
        await incoming.passed(answer(result))


async def test_integer_over_64_bits_becomes_float(incoming: IncomingMessages) -> None:
    text = b'{"id": 1, "result": {"a": %d}}' % 10**30
    assert (await passed(incoming, text))["result"] == {"a": 1e30}


async def test_error_keeps_code_and_start_of_message(incoming: IncomingMessages) -> None:
    error = {"code": 7, "message": "x" * 10_000, "data": {"large": "x" * 10_000}}
    text = orjson.dumps({"id": 1, "error": error})
    assert (await passed(incoming, text))["error"] == {"code": 7, "message": "x" * 2_000}


async def test_notifications_are_dropped(incoming: IncomingMessages) -> None:
    assert await passed(incoming, request("notifications/progress", params={"progress": 1})) is None


@pytest.mark.parametrize("method", ["sampling/createMessage", "elicitation/create", "roots/list", "odd"])
async def test_request_for_unsupported_feature_is_dropped(incoming: IncomingMessages, method: str) -> None:
    assert await passed(incoming, request(method, id="s", params={"messages": ["x" * 1_000]})) is None


async def test_ping_passes_without_parameters(incoming: IncomingMessages) -> None:
    text = request("ping", id="s", params={"x": "x" * 1_000})
    assert await passed(incoming, text) == {"jsonrpc": "2.0", "id": "s", "method": "ping"}


async def test_flood_of_pings_fails(incoming: IncomingMessages) -> None:
    for number in range(100):
        assert await incoming.passed(request("ping", id=number))
    with pytest.raises(Failure, match="more pings"):
        await incoming.passed(request("ping", id=100))


async def test_flood_of_notifications_fails(incoming: IncomingMessages) -> None:
    text = request("notifications/progress")
    for _ in range(20_000):
        await incoming.passed(text)
    with pytest.raises(Failure, match="more messages in one session"):
        await incoming.passed(text)


def test_bytes_of_session_are_limited(incoming: IncomingMessages) -> None:
    incoming.receive(1_000)
    with pytest.raises(Failure, match="more in one session"):
        incoming.receive(1)


async def test_large_strings_bypass_package(incoming: IncomingMessages, texts: LargeTexts) -> None:
    result = {"content": [{"text": "x" * 100_000, "short": "y", "n": 1}], "x" * 5_000: None}
    plain = await incoming.passed(answer(result))
    assert plain is not None
    assert len(plain) < 6_000
    page = (orjson.loads(plain)["result"], "cursor")
    assert texts.restore_large(page) == (result, "cursor")


def test_server_cannot_forge_stand_in_of_other_session() -> None:
    first, second = LargeTexts(), LargeTexts()
    stand_in = first.replace_large("x" * 5_000)
    second.replace_large("secret" * 1_000)
    assert second.restore_large(stand_in) == stand_in
