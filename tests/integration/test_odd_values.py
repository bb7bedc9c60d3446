"""Odd values in every field of a request, on each store: each is accepted, or refused with a 4xx and a reason."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import product
from typing import Final

import httpx
import pytest

from tests.support.hostile.words import FIELDS
from tests.support.stack import REPOSITORY, Host, LiveStack
from tests.support.stores import serving
from tests.support.tracebacks import assert_no_traceback
from tests.support.upstream import UpstreamProcess
from tests.support.variants import add_containers, variant
from tests.support.wire import Json, Wire, error_of

pytestmark = [pytest.mark.live, pytest.mark.extended]

TEMPLATES: Final = ["starter"] if find_spec("ogx") else ["starter", "redis", "postgres"]
"""One store is tested on both hosts, and the rest on one, because stores do not depend on the host."""


@pytest.fixture(scope="module")
def stacks(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, LiveStack]]:
    """A stack on each store, with containers, by the template's name."""
    folder = tmp_path_factory.mktemp("odd")
    with ExitStack() as running:
        servers: dict[str, LiveStack] = {}
        for name in TEMPLATES:
            env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url}
            if server := running.enter_context(serving(name, folder / f"{name}-server")):
                env |= server.environment
            template = REPOSITORY / "templates" / name / "config.yaml"
            config = variant(template, folder / name / "config.yaml", add_containers)
            servers[name] = LiveStack(config, env, folder / name / "state", host=host)
        starters = running.enter_context(
            ThreadPoolExecutor(len(servers))
        )  # a child process ends with the thread that started it
        for stack in servers.values():
            running.callback(stack.stop)
        list(starters.map(LiveStack.start, servers.values()))
        yield servers


@pytest.fixture(params=TEMPLATES)
def wire(request: pytest.FixtureRequest, stacks: dict[str, LiveStack]) -> Iterator[Wire]:
    """A client of the parametrized stack. Checks that the server logs no traceback during the test."""
    stack = stacks[request.param]
    before = stack.log.stat().st_size
    with Wire(stack, idle_seconds=2.0) as wire:
        yield wire
    assert_no_traceback(stack.log, before)


class ProblemCollector:
    """Collect invalid answers, and report all of them at the end of a `with` block."""

    def __init__(self) -> None:
        self._found: list[str] = []

    def __enter__(self) -> "ProblemCollector":
        """Return this collection."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Fail if there were invalid answers."""
        assert kind is not None or not self._found, "\n".join(self._found)

    def judge(self, what: str, answer: httpx.Response) -> bool:
        """Return whether a request was accepted. Record a problem unless it was, or was refused with a 4xx in OpenAI's form."""
        if answer.status_code == 200:
            return True
        if answer.status_code == 307:  # a redirect for a trailing slash
            return False
        try:
            error_of(answer, answer.status_code)
            assert 400 <= answer.status_code < 500
        except (AssertionError, ValueError, KeyError) as error:
            self._found.append(f"{what[:200]}: {answer.status_code} {answer.text[:200]} {error!s:.100}")
        return False


def sent(wire: Wire, method: str, path: str, body: bytes | None = None, **headers: bytes) -> httpx.Response:
    """Send a request whose path is not normalized, and return the answer."""
    head = {"content-type": "application/json"} if body is not None else {}
    encoded = [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
    return wire.http.request(
        method,
        "/",
        content=body,
        headers=[*((name.encode(), value.encode()) for name, value in head.items()), *encoded],
        extensions={"target": f"/v1{path}".encode()},
    )


def ascii_json(value: Json) -> bytes:
    """Return ASCII JSON, because UTF-8 cannot encode lone surrogates."""
    return json.dumps(value).encode()


def read_back(wire: Wire, problems: ProblemCollector, what: str, answer: httpx.Response) -> None:
    """Retrieve, replay and delete the response, if the request was accepted."""
    if not problems.judge(what, answer):
        return
    created = answer.json()
    for path in ("", "?stream=true", "/input_items"):
        assert problems.judge(f"{what}, GET {path}", wire.http.get(f"/responses/{created['id']}{path}"))
    problems.judge(f"{what}, deleted", wire.http.delete(f"/responses/{created['id']}"))


CHARACTERS: Final = ("a\0b", "\0", "\ud800", "\u202e\u2028\ufffe\U0010ffff\x7f\x1b[2J")


@pytest.mark.parametrize("odd", CHARACTERS, ids=ascii)
def test_odd_characters_in_response_fields_are_accepted_or_4xx(wire: Wire, odd: str) -> None:
    with ProblemCollector() as problems:
        for number, fields in enumerate(FIELDS):
            body = ascii_json({"model": "local/echo", "input": "x", **fields(odd)})
            read_back(wire, problems, f"field {number} with {odd!a}", wire.post(body))
        response = wire.post(ascii_json({"model": "local/echo", "input": odd, "metadata": {"a": odd}}))
        if problems.judge("made", response):
            following = {"model": "local/echo", "input": odd, "previous_response_id": response.json()["id"]}
            problems.judge("continued", wire.post(ascii_json(following)))
        problems.judge("listed", wire.http.get("/responses"))


@pytest.mark.parametrize("odd", CHARACTERS, ids=ascii)
def test_odd_characters_in_conversations_are_accepted_or_4xx(wire: Wire, odd: str) -> None:
    items: list[Json] = [
        {"role": "user", "content": odd},
        {"type": "function_call", "call_id": odd, "name": odd, "arguments": odd},
        {"type": "function_call_output", "call_id": odd, "output": odd},
        {"type": "reasoning", "id": odd, "summary": [{"type": "summary_text", "text": odd}]},
        {"role": "user", "content": "x", "id": odd},
    ]
    with ProblemCollector() as problems:
        bodies: list[Json] = [{"metadata": {odd: odd}}, *({"items": [item]} for item in items)]
        for body in bodies:
            answer = sent(wire, "POST", "/conversations", ascii_json(body))
            if not problems.judge(f"created with {body!a}", answer):
                continue
            path = f"/conversations/{answer.json()['id']}"
            problems.judge("updated", sent(wire, "POST", path, ascii_json({"metadata": {"a": odd}})))
            listed = sent(wire, "GET", f"{path}/items?limit=100")
            assert problems.judge("listed", listed)
            for item in listed.json()["data"]:
                problems.judge(f"item {item['id']!a}", wire.http.get(f"{path}/items/{quoted(item['id'])}"))
            for item in items:
                problems.judge(f"added {item!a}", sent(wire, "POST", f"{path}/items", ascii_json({"items": [item]})))
            used = {"model": "local/echo", "input": odd, "conversation": answer.json()["id"]}
            problems.judge("used", wire.post(ascii_json(used)))
            problems.judge("deleted", sent(wire, "DELETE", path))


def quoted(item_id: str) -> str:
    """Escape every byte of an id for a path."""
    return "".join(f"%{byte:02x}" for byte in item_id.encode(errors="surrogatepass"))


NUMBERS: Final = (
    *("NaN", "Infinity", "1e400", "-1e400", "1e-400", "-0.0"),
    *(str(2**53 + 1), str(-(2**63) - 1), str(2**64), "9" * 400, "1" + "0" * 5_000),
)
PLACES: Final = (
    *('"temperature": %s', '"top_p": %s', '"max_output_tokens": %s', '"max_tool_calls": %s', '"top_logprobs": %s'),
    *('"metadata": {"a": %s}', '"seed": %s', '"top_k": %s', '"priority": %s', '"logit_bias": {"1": %s}', '"user": %s'),
    *('"unknown": %s', '"input": %s', '"input": [%s]', '"chat_template_kwargs": {"a": [%s]}', '"truncation": %s'),
    '"tools": [{"type": "function", "name": "f", "parameters": {"type": "object", "minimum": %s}}]',
    '"text": {"format": {"type": "json_schema", "name": "s", "schema": {"type": "object", "maximum": %s}}}',
    '"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "extra": %s}]',
    '"input": [{"type": "reasoning", "id": "r", "summary": [], "extra": {"a": %s}}]',
    '"prompt": {"id": "p", "version": %s}',
    '"context_management": [{"type": "compaction", "compact_threshold": %s}]',
)


@pytest.mark.parametrize("place", PLACES)
def test_odd_numbers_are_accepted_or_4xx(wire: Wire, place: str) -> None:
    with ProblemCollector() as problems:
        for number in NUMBERS:
            body = '{"model": "local/echo", "input": "x", %s}' % (place % number)
            read_back(wire, problems, body, wire.post(body))


DEPTHS: Final = (10, 120, 250, 900, 1_100, 100_000)
ONE: Final = pytest.mark.parametrize("wire", TEMPLATES[:1], indirect=True)
"""For tests that do not depend on the store."""


@pytest.mark.parametrize("place", PLACES)
def test_deeply_nested_json_is_accepted_or_4xx(wire: Wire, place: str) -> None:
    with ProblemCollector() as problems:
        for depth, (opening, closing) in product(DEPTHS, (("[", "]"), ('{"a":', "}"))):
            value = opening * depth + "1" + closing * depth
            body = '{"model": "local/echo", "input": "x", %s}' % (place % value)
            read_back(wire, problems, f"{place}, {depth} {opening}", wire.post(body))


IDS: Final = (
    *(
        "%00",
        "resp_%00",
        "conv_%00",
        "..",
        "%2e%2e",
        "%2f",
        "..%2f..%2fetc",
        "%",
        "%zz",
        "%ff",
        "%ed%a0%80",
        "a%0ab",
    ),
    *("resp_%ff", "conv_%ed%a0%80", "%20", "a+b", "a;b", "*", "resp_" + "0" * 24, "conv_" + "0" * 24, "x" * 10_000),
    *("resp_" + "0" * 10_000, "%00" * 3_000, "resp_%d9%a3", "-1", "null", "[]", "{}", "'", '%22"', "$", "\\"),
)
ROUTES: Final = (
    *("GET /responses/{}", "GET /responses/{}?stream=true", "DELETE /responses/{}", "POST /responses/{}/cancel"),
    *("GET /responses/{}/input_items", "GET /responses/{}/input_items?after={}", "GET /responses?after={}&model={}"),
    *("POST /responses/{}", "GET /conversations/{}", "POST /conversations/{}", "DELETE /conversations/{}"),
    *("GET /conversations/{}/items", "POST /conversations/{}/items", "GET /conversations/{}/items/{}"),
    *("GET /conversations/[conversation]/items/{}", "DELETE /conversations/[conversation]/items/{}"),
    *("DELETE /conversations/{}/items/{}", "GET /conversations/[conversation]/items?after={}", "GET /containers/{}"),
    *(
        "DELETE /containers/{}",
        "GET /containers/{}/files",
        "GET /containers/{}/files/{}",
        "DELETE /containers/{}/files/{}",
    ),
    *("GET /containers/[container]/files/{}", "GET /containers/[container]/files/{}/content"),
    *(
        "DELETE /containers/[container]/files/{}",
        "GET /containers?after={}",
        "GET /containers/[container]/files?after={}",
    ),
)


@pytest.mark.parametrize("route", ROUTES)
def test_odd_ids_in_paths_are_4xx(wire: Wire, route: str) -> None:
    method, path = route.split(" ")
    for kind in ("conversation", "container"):
        if f"[{kind}]" in path:
            created = sent(wire, "POST", f"/{kind}s", b'{"name": "c"}' if kind == "container" else b"{}")
            path = path.replace(f"[{kind}]", created.json()["id"])
    with ProblemCollector() as problems:
        for odd in IDS:
            body = b'{"metadata": {}, "items": []}' if method == "POST" else None
            answer = sent(wire, method, path.replace("{}", odd), body)
            # A client or a proxy may normalize a path to that of a list.
            taken = problems.judge(f"{route} of {odd[:40]}", answer)
            assert not taken or odd in ("..", "%2e%2e") or "?" in path, f"{route} of {odd}: {answer.text[:200]}"
        problems.judge("the list", sent(wire, "GET", "/responses?limit=1"))


QUERIES: Final = (
    *(
        "limit=1e9",
        "limit=0",
        "limit=-1",
        "limit=",
        "limit=1.5",
        "limit=%d9%a3",
        "limit=" + "9" * 400,
        "limit=1&limit=x",
    ),
    *("after=garbage", "after=%00", "after=%ff", "after=" + "x" * 10_000, "after=..%2f", "order=up", "order=%00"),
    *("include[]=nonsense", "include=%00", "include[]=", "include" + "[]" * 1_000 + "=x", "stream=maybe", "stream=%ff"),
    *("stream=true&starting_after=-1", "stream=true&starting_after=" + "9" * 30, "starting_after=x", "model=%00"),
    *("model=%ff", "model=%ed%a0%80", "%00=%00", "%ff=%ff", "=", "&&&&", "a" * 10_000, "&".join(["limit=1"] * 5_000)),
)


def test_odd_query_strings_are_accepted_or_4xx(wire: Wire) -> None:
    response_id = wire.create(model="local/echo", input="x")["id"]
    conversation = sent(wire, "POST", "/conversations", b"{}").json()["id"]
    container = sent(wire, "POST", "/containers", b'{"name": "c"}').json()["id"]
    item = f"/conversations/{conversation}/items/msg_0"
    with ProblemCollector() as problems:
        for path, query in product(
            (
                *(
                    "/responses",
                    f"/responses/{response_id}",
                    f"/responses/{response_id}/input_items",
                    "/containers",
                    item,
                ),
                *(f"/conversations/{conversation}/items", f"/containers/{container}/files"),
            ),
            QUERIES,
        ):
            problems.judge(f"GET {path}?{query}", sent(wire, "GET", f"{path}?{query}"))


HEADERS: Final[dict[str, bytes]] = {
    "latin_1": b"\xe4",
    "no UTF-8": b"\xff\xfe\x80",
    "a surrogate": b"\xed\xa0\x80",
    "wide": "\u20ac\u3042\U0001f600".encode(),
    "long": b"x" * 60_000,
    "too long": b"x" * 70_000,
    "spaces": b"a  \t b",
    "signs": b"\"';<>&%00\\",
}
NAMES: Final = (
    *("idempotency-key", "x-request-id", "user-agent", "accept", "content-type", "content-encoding", "traceparent"),
    *(
        "tracestate",
        "openai-organization",
        "openai-beta",
        "authorization",
        "cookie",
        "origin",
        "x-forwarded-for",
        "expect",
    ),
    *("if-none-match", "range", "baggage", "x-stainless-retry-count", "accept-encoding", "forwarded", "referer"),
)


@ONE
@pytest.mark.parametrize("value", HEADERS.values(), ids=HEADERS)
def test_odd_header_values_are_accepted_or_4xx(wire: Wire, value: bytes) -> None:
    body = b'{"model": "local/echo", "input": "x", "store": false}'
    with ProblemCollector() as problems:
        for name in NAMES:
            headers = [(b"content-type", b"application/json"), (name.encode(), value)]
            answer = wire.http.post("/responses", content=body, headers=headers)
            problems.judge(f"POST with {name}", answer)
            problems.judge(f"GET with {name}", wire.http.get("/responses?limit=1", headers=[(name.encode(), value)]))
            conversation = wire.http.post("/conversations", content=b"{}", headers=headers)
            problems.judge(f"conversation with {name}", conversation)
