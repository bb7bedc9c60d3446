"""Hostile input of every kind, sent by one user while another goes on with ordinary requests, and served as before.

A new attack is a function below `@attack`: it sends, and asserts what it is answered. The rest is asserted of all of
them: the other user's answers are right and come in time, nothing holds the event loop, memory is bounded, and the
server lives and logs no traceback.
"""

import gzip
import json
import socket
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import repeat
from typing import Any, Final

import httpx
import pytest

from tests.support.auth import auth_server
from tests.support.bystander import Bystander
from tests.support.loop_holds import LoopHolds
from tests.support.machine_clock import MachineClock
from tests.support.memory import PeakMemory
from tests.support.prompts import Desk
from tests.support.search import searxng
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.upstream import Reply, Upstream, UpstreamProcess, reply, text, tool_call
from tests.support.variants import add_containers, let_read, open_this_machine, responses_config, variant
from tests.support.web import Answer, Web
from tests.support.wire import Json, Wire, checked

pytestmark = pytest.mark.live

LOOP_SECONDS: Final = 0.7
"""For which the event loop may be held, not counting the time in which the machine does not run it.

The hosts' own `custom` auth reads the machine's certificates at each request, in the loop: up to 0.3 s.
"""
SERVER_MEGABYTES: Final = 300
"""By which the server process may grow."""
ALL_MEGABYTES: Final = 900
"""By which it may grow with the processes that read documents and run code."""
ATTACKER: Final = "token-of-mallory"
OTHER: Final = "token-of-bob"
USERS: Final[dict[str, Json]] = {
    ATTACKER: {"principal": "mallory", "attributes": {"teams": ["red"]}},
    OTHER: {"principal": "bob", "attributes": {"teams": ["blue"]}},
}
MODELS: Final = "/model/v1"
"""Where the hostile model server is."""
DONE: Final = reply(text("Done."))
BLOCK: Final = b"x" * 2**20


@dataclass(slots=True)
class Attacker:
    """Who attacks, and what serves in it.

    Attributes:
        stack: what is attacked.
        wire: plain HTTP to it, as the attacker.
        upstream: the scripted model server; the model `done` says one word.
        web: pages, MCP servers and a hostile model server.
        host: which host it is.
        clock: the machine's.
    """

    stack: LiveStack
    wire: Wire
    upstream: Upstream
    web: Web
    host: Host
    clock: MachineClock
    headers: Mapping[str, str] = field(default_factory=lambda: {"authorization": f"Bearer {ATTACKER}"})

    def ask(self, *content: Json, model: str = "local/done", **body: Any) -> httpx.Response:
        """Ask for a response to a message of these parts."""
        parts = [*content, {"type": "input_text", "text": "What is it?"}]
        body = {"model": model, "input": [{"role": "user", "content": parts}], **body}
        return self.wire.post(json.dumps(body))  # ASCII, so that it may name what no URL can hold

    def call(self, name: str, arguments: Json, **body: Any) -> Json:
        """The response in which the model makes this call, and then says that it is done."""
        self.upstream.script("calls", [calling(name, arguments), DONE])
        return ended(self.ask(model="local/calls", **body))

    def container(self) -> str:
        """The id of a new container."""
        answer = self.wire.http.post("/containers", json={"name": "c"})
        assert answer.status_code == 200, answer.text
        found: str = answer.json()["id"]
        return found

    @contextmanager
    def raw(self, line: str, *headers: str) -> Iterator[socket.socket]:
        """A connection on which this head was sent."""
        lines = [f"{line} HTTP/1.1", "host: localhost", f"authorization: Bearer {ATTACKER}", *headers, "", ""]
        with socket.create_connection(("127.0.0.1", self.stack.port), 60) as connection:
            connection.sendall("\r\n".join(lines).encode("latin-1"))
            yield connection


def calling(name: str, arguments: Json) -> Reply:
    return reply(tool_call(0, "c1", name, json.dumps(arguments)))


def ended(answer: httpx.Response) -> Json:
    """The response, which has ended."""
    assert answer.status_code == 200, answer.text
    response = checked(answer)
    assert response["status"] in ("completed", "incomplete")
    return response


def refused(answer: httpx.Response, *statuses: int) -> Json:
    """The error, which has one of these statuses, 400 by default."""
    assert answer.status_code in (statuses or (400,)), f"{answer.status_code}: {answer.text[:1000]}"
    error: Json = answer.json()["error"]
    assert isinstance(error["message"], str)
    assert len(error["message"]) > 10
    assert "Traceback" not in error["message"]
    return error


def judged(answer: httpx.Response) -> None:
    """It is taken, or refused as what the client did wrong."""
    if answer.status_code == 200:
        checked(answer)
    else:
        refused(answer, 400, 404, 413, 415, 422, 431)


ATTACKS: Final[dict[str, Callable[[Attacker], None]]] = {}


def attack(**cases: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds an attack: a function of the attacker, which is called once for each case, with its value as `case`."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        def each(at: Attacker) -> None:
            for name, value in cases.items():
                try:
                    function(at, case=value)
                except BaseException as failure:
                    failure.add_note(f"the case is '{name}'")
                    raise

        ATTACKS[function.__name__.replace("_", " ")] = each if cases else function
        return function

    return add


# -- web pages -----------------------------------------------------------------------

PUNYCODE: Final = b"-" + b"a" * 1_500_000
"""It is decoded in quadratic time."""


def find(web: Web, path: str) -> None:
    """Have the search find this page."""
    found = json.dumps(searxng("x", [(web.url(path), "A page", "About it.")])).encode()
    web.answers["/searxng/search"] = Answer(found, headers={"content-type": "application/json"})


def read_page(at: Attacker, answer: Answer) -> None:
    """Have a page read as a file and opened by the model."""
    at.web.answers["/page"] = answer
    judged(at.ask({"type": "input_file", "file_url": at.web.url("/page")}))
    find(at.web, "/page")
    at.call("open_page", {"page": at.web.url("/page")}, tools=[{"type": "web_search"}])


@attack(
    text=("text/plain; charset=punycode", PUNYCODE),
    html=("text/html; charset=punycode", b"<p>" + PUNYCODE),
    meta=("text/html", b"<meta charset=punycode><p>" + PUNYCODE),
    idna=("text/plain; charset=idna", b"xn--" + b"a" * 1_500_000),
    long_header=('text/plain;"' + ";" * 50_000, b"x"),
)
def page_in_an_odd_charset(at: Attacker, case: tuple[str, bytes]) -> None:
    read_page(at, Answer(case[1], headers={"content-type": case[0]}))


@cache
def zeros(wbits: int) -> bytes:
    """64 MiB of zeros, compressed."""
    made = zlib.compressobj(1, zlib.DEFLATED, wbits)
    return b"".join([*(made.compress(bytes(2**20)) for _ in range(64)), made.flush()])


@attack(gzip=31, deflate=15)
def page_that_is_a_decompression_bomb(at: Attacker, case: int) -> None:
    kind = "gzip" if case == 31 else "deflate"
    read_page(at, Answer(zeros(case), headers={"content-type": "text/html", "content-encoding": kind}))


@attack()
def page_compressed_twice(at: Attacker) -> None:
    body = gzip.compress(zeros(31))
    read_page(at, Answer(body, headers={"content-type": "text/html", "content-encoding": "gzip, gzip"}))


@attack(
    div=b"<div>" * 400_000,
    b=b"<b><i>" * 300_000,
    table=b"<table><tr><td>" * 100_000,
    attributes=b"<p " + b"a=b " * 500_000 + b">",
    comment=b"<!--" * 500_000,
    entities=b"&" * 1_000_000,
)
def page_with_odd_html(at: Attacker, case: bytes) -> None:
    read_page(at, Answer(case, headers={"content-type": "text/html"}))


@attack()
def page_without_end(at: Attacker) -> None:
    at.web.answers["/page"] = lambda _: Answer(repeat(BLOCK), headers={"content-type": "text/plain"})
    judged(at.ask({"type": "input_file", "file_url": at.web.url("/page")}))


TRAPPED: Final = (
    "http://127.0.0.2:{port}/",
    "http://2130706434:{port}/",
    "http://0x7f000002:{port}/",
    "http://0177.0.0.2:{port}/",
    "http://127.2:{port}/",
    "http://[::1]:{port}/",
    "http://[::ffff:127.0.0.2]:{port}/",
    "http://[::127.0.0.2]:{port}/",
    "http://[64:ff9b::7f00:2]:{port}/",
    "http://[2002:7f00:2::]:{port}/",
    "http://user@127.0.0.2:{port}/",
    "http://127.0.0.2%2e:{port}/",
    "http://①27.0.0.2:{port}/",
)
ODD_URLS: Final = (
    *(
        "http://xn--/",
        "http://[",
        "http://]",
        "http://",
        "http://:80/",
        "http://a b/",
        "http://\u0000/",
        "http://\x7f/",
    ),
    *("http://127.0.0.2:0/", "http://127.0.0.2:99999/", "http://127.0.0.2:-1/", "http://127.0.0.2:x/"),
    *("http://169.254.169.254/latest", "http://10.0.0.1/", "http://[fe80::1%25lo]/", "http://[fc00::1]/"),
    *("file:///etc/passwd", "gopher://127.0.0.2/", "//127.0.0.2/", "http:127.0.0.2", "http://" + "a" * 70_000),
    *("http://" + "a." * 5_000, "http://xn--" + "a" * 5_000, "http://\ud800/"),
)


@contextmanager
def traps() -> Iterator[tuple[int, list[socket.socket]]]:
    """Ports that nothing may reach, with one number."""
    with ExitStack() as opened:
        first = opened.enter_context(socket.create_server(("127.0.0.2", 0)))
        port = first.getsockname()[1]
        found = [first]
        with suppress(OSError):  # a machine without IPv6
            found.append(opened.enter_context(socket.create_server(("::1", port), family=socket.AF_INET6)))
        for trap in found:
            trap.settimeout(0)
        yield port, found


@attack(file_url="input_file", image_url="input_image", mcp="mcp", page="page")
def url_of_something_internal(at: Attacker, case: str) -> None:
    at.upstream.script("offline", DONE)

    def name(url: str) -> None:
        if case == "mcp":
            tool = {"type": "mcp", "server_label": "s", "server_url": url, "require_approval": "never"}
            refused(at.ask(tools=[tool]), 400, 424, 502)
        elif case == "page":
            at.call("open_page", {"page": url}, tools=[{"type": "web_search"}])
        else:
            key = "file_url" if case == "input_file" else "image_url"
            refused(at.ask({"type": case, key: url}, model="local/offline"))

    with traps() as (port, listening):
        for url in TRAPPED:
            name(url.format(port=port))
            at.web.answers["/page"] = Answer(
                status=302, headers={"location": url.format(port=port).encode().decode("latin-1")}
            )
            name(at.web.url("/page"))
        for url in ODD_URLS:
            name(url)
        for trap in listening:
            with pytest.raises(BlockingIOError):
                trap.accept()


# -- what requests say -----------------------------------------------------------------


@attack()
def prompt_that_grows(at: Attacker) -> None:
    prompt = Desk(at.stack, ATTACKER).write("{{a}}" * 5_000, "a")
    body = {"model": "local/done", "input": "x", "prompt": {"id": prompt, "variables": {"a": "x" * 200_000}}}
    refused(at.wire.post(body))


ODD_JSON: Final[dict[str, bytes]] = {
    "arrays": b"[" + b"[]," * 600_000 + b"[]]",
    "objects": b"[" + b"{}," * 600_000 + b"{}]",
    "deep arrays": b"[" * 1_000_000,
    "deep objects": b'{"a":' * 500_000,
    "deep and whole": b"[" * 100_000 + b"]" * 100_000,
    "a long number": b"1" * 1_000_000,
    "a large exponent": b"1e999999999",
    "a number of 400 digits": b"9" * 400,
    "equal keys": b"{" + b'"a":1,' * 300_000 + b'"a":1}',
    "escapes": b'"' + b"\\u0000" * 500_000 + b'"',
    "cut off": b'"' + b"x" * 1_000_000,
}


@attack(**{name.replace(" ", "_"): value for name, value in ODD_JSON.items()})
def odd_json(at: Attacker, case: bytes) -> None:
    bodies = [b'{"model": "local/done", "input": %b}', b'{"model": "local/done", "input": "x", "metadata": %b}']
    bodies += [b'{"model": "local/done", "input": "x", "max_output_tokens": %b}', b"%b"]
    for body in bodies:
        judged(at.wire.post(body % case))
    answer = at.wire.http.post("/conversations", content=bodies[0] % case, headers={"content-type": "application/json"})
    client_error(answer)


def client_error(answer: httpx.Response) -> None:
    """A 200, or a 4xx in OpenAI's form."""
    if answer.status_code != 200:
        refused(answer, 400, 404, 405, 413, 415, 422, 429)


FIELDS: Final[tuple[Callable[[str], Json], ...]] = (
    lambda odd: {"input": odd},
    lambda odd: {"model": odd},
    lambda odd: {"model": f"local/{odd}"},
    lambda odd: {"instructions": odd},
    lambda odd: {"metadata": {odd: odd}},
    lambda odd: {"previous_response_id": odd},
    lambda odd: {"conversation": odd},
    lambda odd: {"conversation": {"id": f"conv_{odd}"}},
    lambda odd: {"prompt": {"id": odd, "version": odd}},
    lambda odd: {"prompt_cache_key": odd, "safety_identifier": odd},
    lambda odd: {"user": odd},
    lambda odd: {"include": [odd]},
    lambda odd: {"truncation": odd},
    lambda odd: {"service_tier": odd},
    lambda odd: {"tool_choice": odd},
    lambda odd: {"tools": [{"type": "function", "name": odd, "parameters": {}}]},
    lambda odd: {"tools": [{"type": "function", "name": "f", "description": odd, "parameters": {odd: odd}}]},
    lambda odd: {"tools": [{"type": odd}]},
    lambda odd: {"tools": [{"type": "code_interpreter", "container": odd}]},
    lambda odd: {"tools": [{"type": "file_search", "vector_store_ids": [odd]}]},
    lambda odd: {"tools": [{"type": "mcp", "server_label": odd, "server_url": odd}]},
    lambda odd: {"text": {"format": {"type": "json_schema", "name": odd, "schema": {odd: odd}}}},
    lambda odd: {"reasoning": {"effort": odd}},
    lambda odd: {"input": [{"type": "item_reference", "id": odd}]},
    lambda odd: {"input": [{"role": odd, "content": odd}]},
    lambda odd: {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": odd}]}]},
    lambda odd: {"input": [{"role": "user", "content": [{"type": "input_file", "file_data": odd, "filename": odd}]}]},
    lambda odd: {"input": [{"type": "function_call", "call_id": odd, "name": odd, "arguments": odd}]},
    lambda odd: {"input": [{"type": "function_call_output", "call_id": odd, "output": odd}]},
    lambda odd: {"input": [{"type": "reasoning", "id": odd, "summary": [], "encrypted_content": odd}]},
)


@attack(nul="a\u0000b", surrogate="\ud800")
def odd_characters_in_every_field(at: Attacker, case: str) -> None:
    for fields in FIELDS:
        body = {"model": "local/done", "input": "x", **fields(case)}
        answer = at.wire.post(json.dumps(body))
        judged(answer)
        if answer.status_code == 200:
            checked(at.wire.get(f"/{answer.json()['id']}"))


@attack()
def odd_characters_in_ids_and_queries(at: Attacker) -> None:
    for odd in ("%00", "%ff", "a" * 5_000, "..%2f..", "%0d%0a", "resp_%00"):
        for path in (f"/responses/{odd}", f"/conversations/{odd}", f"/containers/{odd}", f"/containers/{odd}/files"):
            refused(at.wire.http.get(path), 400, 404)
        for name in ("after", "limit", "include[]"):
            for path in ("/responses", "/containers"):
                client_error(at.wire.http.get(f"{path}?{name}={odd}"))
        key = {"idempotency-key": odd}
        judged(at.wire.http.post("/responses", json={"model": "local/done", "input": odd}, headers=key))


# -- how requests are sent ------------------------------------------------------------

FORM: Final = "content-type: multipart/form-data; boundary=b"
FILE_PART: Final = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'


def send_form(at: Attacker, opening: bytes, block: bytes, blocks: int) -> int:
    """Send a form of so many blocks, as long as it is taken; the status, and 0 where the connection only ended."""
    path = f"/v1/containers/{at.container()}/files"
    with at.raw(f"POST {path}", FORM, "transfer-encoding: chunked") as connection:
        with suppress(ConnectionError):
            for piece in (opening, *repeat(block, blocks)):
                connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
            connection.sendall(b"0\r\n\r\n")
        with suppress(ConnectionError):
            return int((connection.recv(65_536).split(b" ", 2)[1:2] or [b"0"])[0])
    return 0


@attack(
    content=(FILE_PART, BLOCK, 200),
    head=(b"--b\r\nContent-Disposition: form-data; ", BLOCK, 200),
    header=(b"--b\r\n", b"x: y\r\n" * 100_000, 100),
    preamble=(b"", BLOCK, 200),
    parts=(b"", (FILE_PART + b"x\r\n") * 100, 100),
    fields=(b"", b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\nx\r\n' * 1_000, 100),
    bounds=(b"", b"--b\r\n" * 100_000, 100),
)
def form_without_end(at: Attacker, case: tuple[bytes, bytes, int]) -> None:
    assert send_form(at, *case) in (0, 400, 413)


@attack()
def file_names(at: Attacker) -> None:
    names = (
        b"..",
        b".",
        b"",
        b"a\0b",
        b"x" * 300,
        b"\xff\xfe",
        b"/etc/passwd",
        b"../../x",
        b"a/b",
        b"-",
        b"\xed\xa0\x80",
    )
    path = f"/containers/{at.container()}/files"
    kind = {"content-type": "multipart/form-data; boundary=b"}
    for name in (*names, b"\\..\\x", b"\r\nx: y", b"~", b"con", "\u202e".encode(), b"x" * 100_000):
        head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="%b"\r\n\r\n' % name
        answer = at.wire.http.post(path, content=head + b"x\r\n--b--\r\n", headers=kind)
        if answer.status_code == 200:
            assert answer.json()["path"].startswith("/mnt/data/")
            assert ".." not in answer.json()["path"].split("/")
        else:
            refused(answer)
    client_error(at.wire.http.get(path))


# -- the stack, and the test ---------------------------------------------------------


@pytest.fixture(scope="module")
def pages() -> Iterator[Web]:
    """The web of these tests."""
    with Web() as web:
        web.say_json(f"{MODELS}/models", {"object": "list", "data": []})
        yield web


@pytest.fixture(scope="module")
def attacked(
    host: Host,
    stack_env: dict[str, str],
    upstream_process: UpstreamProcess,
    pages: Web,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LiveStack]:
    """A stack with two users, tight limits, and everything that can be attacked."""

    def change(endpoint: str, config: Json) -> None:
        add_containers(config)
        open_this_machine(config)
        let_read(config)
        found = responses_config(config)
        found["code_interpreter"] |= {"seconds": 5, "memory_mb": 256, "files_mb": 16, "containers": 64}
        found["files"] = {"seconds": 10, "memory_mb": 512}
        found["limits"] = {"output_bytes": 4 * 2**20, "output_events": 20_000}
        [local] = config["providers"]["inference"]
        hostile = {**local, "provider_id": "hostile", "config": {"base_url": pages.url(MODELS)}}
        config["providers"]["inference"].append(hostile)
        config["server"]["auth"] = {"provider_config": {"type": "custom", "endpoint": endpoint}}

    folder = tmp_path_factory.mktemp("attacked")
    env = {
        **stack_env,
        "INFERENCE_URL": upstream_process.client.base_url,
        "SEARXNG_URL": pages.url("/searxng"),
    }
    with auth_server(USERS) as endpoint:
        config = variant(STARTER, folder / "config.yaml", partial(change, endpoint))
        with LiveStack(config, env, folder / "state", host=host) as live:
            with Wire(live, OTHER) as wire:
                wire.create(model="local/echo", input="Whatever is read at first, is read.")
            yield live


@pytest.fixture(scope="module")
def clock() -> Iterator[MachineClock]:
    """The machine's clock."""
    with MachineClock() as clock:
        yield clock


@pytest.fixture(scope="module")
def bystander(attacked: LiveStack, clock: MachineClock, upstream_process: UpstreamProcess) -> Iterator[Bystander]:
    """The other user."""
    with Bystander(attacked, OTHER, clock, upstream_process.child.pid) as bystander:
        yield bystander


@pytest.fixture
def attacker(
    attacked: LiveStack, upstream_process: UpstreamProcess, pages: Web, host: Host, clock: MachineClock
) -> Iterator[Attacker]:
    """Whose pages and models are forgotten."""
    pages.reset()
    upstream = upstream_process.client  # a reset would cut off what the other user is answered
    upstream.script("done", DONE)
    with Wire(attacked, ATTACKER, idle_seconds=2.0) as wire:
        yield Attacker(attacked, wire, upstream, pages, host, clock)


def nothing(_: Attacker) -> None:
    """By which the bounds are judged themselves."""


@pytest.mark.parametrize("name", ["nothing", *ATTACKS])
def test_hostile_input_costs_the_other_user_nothing(attacker: Attacker, bystander: Bystander, name: str) -> None:
    stack = attacker.stack
    said_before, holds, memory = stack.log.stat().st_size, LoopHolds(stack.log), PeakMemory(stack.pid)
    with bystander.watched():
        ATTACKS.get(name, nothing)(attacker)
    holds.assert_none_above(LOOP_SECONDS)
    assert memory.of_server() < SERVER_MEGABYTES
    assert memory.of_all() < ALL_MEGABYTES
    assert b"Traceback" not in stack.log.read_bytes()[said_before:], stack.tail()
