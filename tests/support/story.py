"""An afternoon of a support desk, stored in a stack, for readers of the built-in page who have never seen it.

    python -m tests.support.story --state /tmp/story [--static FOLDER]    # starts a stack, prints its page's address

Questions about it are answered with the page alone: `tests/integration/browser/test_page_story.py`.
"""

import argparse
import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.mcp_server import McpServers
from tests.support.script import Reply, error, reasoning, reply, text, tool_call
from tests.support.search import searxng
from tests.support.showcase import make_showcase, pieces
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess
from tests.support.variants import add_containers, open_this_machine, responses_config, variant
from tests.support.waiting import wait_until
from tests.support.web import Answer, ReceivedRequest, Web
from tests.support.wire import Json, Wire, final

LONG_WORD: Final = "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft" * 4
COMPLAINT: Final = (
    "My name is Ada Berg, and I write about order 4711. The lamp came on Tuesday with a broken shade, although the box "
    "was whole. I have kept all of it: the box, the foam, the shade in its pieces and the note of the courier. Your "
    "leaflet says that a shade is replaced within a week, and asks for a picture, which I sent on Wednesday to the "
    "address on the invoice. Since then I have heard nothing. Please tell me who has my picture, when the shade comes, "
    "and whether I have to send the pieces back."
)
PROMISE: Final = (
    "I am sorry, Ms Berg. Your picture is with the workshop, and I have asked for a new shade. It leaves our house on "
    "Friday. You do not have to send the pieces back."
)
SUMMARY: Final = (
    "**Ada Berg** wrote about order 4711: the shade of her lamp is broken. A new one leaves on *Friday*; she may keep "
    "the pieces."
)
RIGHT_TO_LEFT: Final = "مرحبا، أين طلبي رقم 4711؟ 😀👩‍👩‍👧"


@dataclass(frozen=True, slots=True)
class Story:
    """Ids of what happened.

    Attributes:
        failing: a call of a tool that failed, and an answer that says so.
        costly: most tokens of all.
        slow: its second model round waited three seconds for the first token.
        root, kept, left: a chain with a branch that was left.
        cancelled: a background job that was cancelled while it wrote.
        refused: the model server refused the request.
        searched: a web search, with citations.
        computed: code that failed, and code that worked.
        compacted: a turn before which the conversation was compacted.
        sealed: its input holds reasoning that only its server can read.
        approval: waits for the approval of a call.
        odd: long words, other scripts.
    """

    failing: str
    costly: str
    slow: str
    root: str
    kept: str
    left: str
    cancelled: str
    refused: str
    searched: str
    computed: str
    compacted: str
    sealed: str
    approval: str
    odd: str


def make_story(wire: Wire, upstream: Upstream, mcp: McpServers, web: Web) -> Story:
    """Script the models and make the responses, oldest first."""
    root, kept, left = _branches(wire, upstream)
    return Story(
        root=root,
        kept=kept,
        left=left,
        compacted=_compacted(wire, upstream),
        sealed=_sealed(wire, upstream),
        searched=_searched(wire, upstream, web),
        computed=_computed(wire, upstream),
        approval=_approval(wire, upstream, mcp),
        odd=_odd(wire, upstream),
        costly=_costly(wire, upstream),
        slow=_slow(wire, upstream, mcp),
        failing=_failing(wire, upstream, mcp),
        refused=_refused(wire, upstream),
        cancelled=_cancelled(wire, upstream),
    )


def _calls(mcp: McpServers, *names: str, approval: str = "never") -> Json:
    head = {"type": "mcp", "server_label": "orders", "server_url": mcp.url("mcp")}
    return {**head, "require_approval": approval, "allowed_tools": list(names)}


def _branches(wire: Wire, upstream: Upstream) -> tuple[str, str, str]:
    answers = ["Dear Ms Berg, your order has left our house.", "Hi! Your parcel is on its way.", "Your order has left."]
    upstream.script("clerk", [reply(text(*pieces(answer)), interval=0.01) for answer in answers])
    request = {"model": "local/clerk", "metadata": {"desk": "mail"}}
    root = wire.create(input="Draft a reply to Ms Berg about order 4711.", **request)["id"]
    kept = wire.create(input="Make it informal.", previous_response_id=root, **request)["id"]
    left = wire.create(input="Make it shorter.", previous_response_id=root, **request)["id"]
    return root, kept, left


def _failing(wire: Wire, upstream: Upstream, mcp: McpServers) -> str:
    call = tool_call(0, "call_1", "orders__fail", '{"reason": "Order 4711 is locked by the warehouse until 18:00."}')
    answer = reply(text("I could not change the address: the warehouse has locked order 4711 until 18:00."))
    upstream.script("clerk-tools", [reply(call), answer])
    question = "Change the address of order 4711 to Harbour Street 5."
    streamed = wire.stream(
        model="local/clerk-tools", input=question, tools=[_calls(mcp, "fail")], metadata={"desk": "phone"}
    )
    return str(final(streamed)["id"])


def _costly(wire: Wire, upstream: Upstream) -> str:
    details = {
        "prompt_tokens_details": {"cached_tokens": 1024},
        "completion_tokens_details": {"reasoning_tokens": 9_800},
    }
    usage = {"prompt_tokens": 184_220, "completion_tokens": 12_345, "total_tokens": 196_565, **details}
    thoughts = reasoning("The manual has 412 pages. ", "I read the chapters on warranty first.")
    upstream.script(
        "reader", reply(thoughts, text("Three clauses contradict each other: 4.2, 9 and 17.1."), usage=usage)
    )
    return str(wire.create(model="local/reader", input="Read the whole manual and find contradictions.")["id"])


def _slow(wire: Wire, upstream: Upstream, mcp: McpServers) -> str:
    call = tool_call(0, "call_1", "orders__weather", '{"city": "Oslo"}')
    late = reply(text(*pieces("The ferry to Oslo leaves; the weather is calm.")), delay=3.0, interval=0.02)
    upstream.script("clerk-slow", [reply(call), late])
    tools = [_calls(mcp, "weather")]
    return str(final(wire.stream(model="local/clerk-slow", input="Does the ferry to Oslo leave?", tools=tools))["id"])


def _cancelled(wire: Wire, upstream: Upstream) -> str:
    upstream.script("report", reply(text("Sales of the first quarter: ", "up by 4 %. "), hold=2))
    response_id = wire.post({"model": "local/report", "input": "Write the yearly report.", "background": True}).json()[
        "id"
    ]
    # What no reader has seen may be taken back.
    with wire.http.stream("GET", f"/responses/{response_id}", params={"stream": "true"}) as events:
        next(line for line in events.iter_lines() if "up by 4 %" in line)
    wire.http.post(f"/responses/{response_id}/cancel")
    wait_until(lambda: wire.retrieve(response_id)["status"] == "cancelled")
    return str(response_id)


def _refused(wire: Wire, upstream: Upstream) -> str:
    upstream.script(
        "busy", [error(503, "All graphics cards are in use."), error(503, "All graphics cards are in use.")]
    )
    body = {"model": "local/busy", "input": "Translate the newsletter.", "background": True}
    response_id = str(wire.post(body).json()["id"])
    wait_until(lambda: wire.retrieve(response_id)["status"] == "failed")
    return response_id


def _searched(wire: Wire, upstream: Upstream, web: Web) -> str:
    def search(request: ReceivedRequest) -> Answer:
        found = [
            (f"https://example.org{path}", f"About {path[1:]}", f"All of {path[1:]}.") for path in ("/otters", "/fish")
        ]
        return Answer(
            json.dumps(searxng(request.query["q"], found)).encode(), headers={"content-type": "application/json"}
        )

    web.answers["/searxng/search"] = search
    call = tool_call(0, "call_0", "web_search", '{"queries": ["otters asleep"]}')
    upstream.script("searcher", [reply(call), reply(text("They sleep hand in hand【1】, and eat fish【2】."))])
    request: Json = {"tools": [{"type": "web_search"}], "include": ["web_search_call.results"]}
    return str(final(wire.stream(model="local/searcher", input="How do otters sleep?", **request))["id"])


def _computed(wire: Wire, upstream: Upstream) -> str:
    def python(code: str) -> Reply:
        return reply(tool_call(0, "c1", "python", json.dumps({"code": code})))

    table = "for month in range(1, 4):\n    print(month, month ** 2, sep='\\t')"
    upstream.script("coder", [python("1 / 0"), python(table), reply(text("The third month has **9** orders."))])
    tools = [{"type": "code_interpreter", "container": {"type": "auto"}}]
    streamed = wire.stream(model="local/coder", input="Sum up.", tools=tools, include=["code_interpreter_call.outputs"])
    return str(final(streamed)["id"])


def _compacted(wire: Wire, upstream: Upstream) -> str:
    upstream.script("memory", [reply(text(each)) for each in (PROMISE, SUMMARY, "You are called Ada Berg.")])
    first = wire.create(model="local/memory", input=COMPLAINT)["id"]
    more: Any = {"context_management": [{"type": "compaction", "compact_threshold": 100}]}
    return str(wire.create(model="local/memory", input="What is my name?", previous_response_id=first, **more)["id"])


def _sealed(wire: Wire, upstream: Upstream) -> str:
    upstream.script("thinker", [reply(reasoning("Seven is prime."), text("7 is prime.")), reply(text("So is 11."))])
    request: Json = {"model": "local/thinker", "include": ["reasoning.encrypted_content"]}
    thought = wire.create(input="Is 7 prime?", **request)["output"][0]
    item = {"type": "reasoning", "summary": [], "encrypted_content": thought["encrypted_content"]}
    given = [{"role": "user", "content": "Is 7 prime?"}, item, {"role": "assistant", "content": "7 is prime."}]
    return str(wire.create(input=[*given, {"role": "user", "content": "And 11?"}], **request)["id"])


def _approval(wire: Wire, upstream: Upstream, mcp: McpServers) -> str:
    upstream.script("asker", reply(tool_call(0, "call_1", "orders__add", '{"a": 4711, "b": 1}')))
    tools = [_calls(mcp, "add", approval="always")]
    return str(wire.create(model="local/asker", input="Add one to the order.", tools=tools)["id"])


def _odd(wire: Wire, upstream: Upstream) -> str:
    name = "odd-model-with-a-very-long-name-2026-11-23-instruct-awq-q4_k_m"
    upstream.script(name, reply(text(f"{RIGHT_TO_LEFT}\n\n`{LONG_WORD}` {LONG_WORD}")))
    metadata = {LONG_WORD[:64]: LONG_WORD, "language": "ar"}
    return str(wire.create(model=f"local/{name}", input=f"{LONG_WORD} {RIGHT_TO_LEFT}", metadata=metadata)["id"])


@contextmanager
def story_stack(
    folder: Path, env: dict[str, str], upstream: UpstreamProcess, web: Web, host: Host = "llama_stack"
) -> Iterator[LiveStack]:
    """A stack that records chat requests, searches the web of `web` and runs code in containers."""

    def change(config: Json) -> None:
        open_this_machine(config)
        add_containers(config)
        prices = [{"match": "*", "input": 1.0, "output": 3.0}]
        responses_config(config).update(
            ui={"record_requests": True}, usage={"prices": prices}, webhooks={"allow_http": True}, batches={}
        )

    settings = {**env, "INFERENCE_URL": upstream.client.base_url, "SEARXNG_URL": web.url("/searxng")}
    with LiveStack(variant(STARTER, folder / "config.yaml", change), settings, folder / "state", host=host) as live:
        yield live


@dataclass(frozen=True, slots=True)
class StoryStack:
    """A stack with the story and the responses of every kind.

    Attributes:
        stack: the stack.
        upstream: scripts its models.
        ids: the ids of the responses, by the names of `Story` and `Showcase`.
    """

    stack: LiveStack
    upstream: Upstream
    ids: Json


@contextmanager
def furnished(folder: Path, static: Path | None = None) -> Iterator[StoryStack]:
    """Start a stack and make its responses; with `static`, the page's files are read from there at each request."""
    folder.mkdir(parents=True, exist_ok=True)
    env = {"LLAMA_STACK_RESPONSES_UI_DIR": str(static.resolve())} if static else {}
    with ExitStack() as opened:
        upstream = opened.enter_context(UpstreamProcess(folder / "upstream.log"))
        web = opened.enter_context(Web())
        mcp = opened.enter_context(McpServers(folder / "mcp.log", "token"))
        stack = opened.enter_context(story_stack(folder, env, upstream, web))
        with Wire(stack) as wire:
            created = {
                **_ids(make_showcase(wire, upstream.client, mcp)),
                **_ids(make_story(wire, upstream.client, mcp, web)),
            }
        yield StoryStack(stack, upstream.client, created)


def main() -> None:
    """Start a stack with the story and the responses of every kind, and keep it until a signal."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--static", type=Path, help="read the page's files from this folder at each request")
    options = parser.parse_args()
    with furnished(options.state, options.static) as found:
        server, upstream = found.stack.base_url, found.upstream.url
        (options.state / "ids.json").write_text(json.dumps({"server": server, "upstream": upstream, **found.ids}))
        print(f"{server}/ui", flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})


def _ids(found: Any) -> Json:
    return {name: getattr(found, name) for name in found.__slots__}


if __name__ == "__main__":
    main()
