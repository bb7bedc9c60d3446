"""Golden stores: what a version of this repository stored, and what it answered about it.

    python -m tests.support.golden_store CHECKOUT NAME

starts the host with the package of a checkout on each store, makes responses of many kinds over HTTP, kills the server
while background responses wait and run, and writes `tests/integration/golden/NAME-STORE.json.xz`: the answers, and the
store as that version left it.
"""

from __future__ import annotations

import json
import lzma
import os
import sqlite3
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal, Self

import httpx
from redis import Redis

from tests.support.postgres import program
from tests.support.script import Reply, error, finish, reasoning, reply, text, tool_call
from tests.support.sse import read_sse
from tests.support.stack import LiveStack
from tests.support.stores import serving
from tests.support.upstream import Upstream, UpstreamProcess
from tests.support.variants import responses_config, variant

type Json = dict[str, Any]
type Kind = Literal["sqlite", "redis", "postgres"]

FOLDER: Final = Path(__file__).parents[1] / "integration" / "golden"
TEMPLATES: Final[dict[Kind, str]] = {"sqlite": "starter", "redis": "redis", "postgres": "postgres"}
SECRET: Final = b64encode(bytes(range(32))).decode()
WEATHER: Final = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
WHOLE: Final = reply(text("one ", "two ", "three"))
ADDED: Final = {"response_id", "store", "presence_penalty", "frequency_penalty", "billing", "name"}
"""Fields of responses and events that the first of these versions does not have."""
SCRIPTS: Final[dict[str, list[Reply]]] = {
    "plain": [reply(text("Füße ", "\U0001f600"))],
    "thinks": [reply(reasoning("First this, ", "then that."), text("So."))],
    "calls": [reply(tool_call(0, "call_1", "weather", '{"city":', '"Oslo"}')), reply(text("Rain."))],
    "breaks": [reply(text("Hel"), end="error_frame", body={"error": {"message": "gone"}})],
    "long": [reply(text("one ", "two"), finish("length"))],
    "refuses": [error(400, "no")],
    "held": [reply(text("one ", "two"), hold=1)],
    "work": [WHOLE],
}


@dataclass(frozen=True)
class GoldenStore:
    """A golden store.

    Attributes:
        kind: its store.
        dump: the store's content, in a form that `load` reads.
        responses: what the version answered about each response, by id.
        conversations: what it answered about each conversation, by id.
        unfinished: the ids of background responses that waited or ran when the server was killed.
    """

    kind: Kind
    dump: str
    responses: Mapping[str, Json]
    conversations: Mapping[str, Json]
    unfinished: list[str]

    @staticmethod
    def read(path: Path) -> GoldenStore:
        """Return the store of a file."""
        return GoldenStore(**json.loads(lzma.decompress(path.read_bytes())))

    def write(self, path: Path) -> None:
        """Write the store to a file."""
        path.write_bytes(lzma.compress(json.dumps(vars(self), sort_keys=True).encode(), preset=9))


def keep_for_ever(config: Json) -> None:
    """Let one background response run at a time, and delete nothing for its age."""
    responses_config(config).update(background={"at_once": 1}, retention_days=None)


def dump(kind: Kind, server: Any, state: Path) -> str:
    """Return the content of a store."""
    if kind == "sqlite":
        whole = state / "whole.db"
        with closing(sqlite3.connect(state / "responses.db")) as database:
            database.execute("VACUUM INTO ?", (str(whole),))
        return b64encode(whole.read_bytes()).decode()
    if kind == "redis":
        with Redis.from_url(server.url) as client:
            keys = sorted(client.scan_iter())
            rows = [(key, client.dump(key)) for key in keys if client.pttl(key) == -1]
        return json.dumps([[b64encode(part).decode() for part in row] for row in rows])
    command = [program("pg_dump"), "--inserts", "--no-owner", f"--dbname={server.url}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def load(golden: GoldenStore, server: Any, state: Path) -> None:
    """Write the content of a golden store to an empty one."""
    if golden.kind == "sqlite":
        state.mkdir(parents=True)
        (state / "responses.db").write_bytes(b64decode(golden.dump))
    elif golden.kind == "redis":
        with Redis.from_url(server.url) as client:
            for key, value in json.loads(golden.dump):
                client.restore(b64decode(key), 0, b64decode(value))
    else:
        command = [program("psql"), "--quiet", "--set=ON_ERROR_STOP=1", f"--dbname={server.url}"]
        subprocess.run(command, input=golden.dump, capture_output=True, text=True, check=True)


class StoreClient:
    """Makes responses on a server, and asks what it stored.

    Attributes:
        http: its client, for paths below `/v1`.
    """

    def __init__(self, stack: LiveStack) -> None:
        self.http = httpx.Client(base_url=f"{stack.base_url}/v1", timeout=120, trust_env=False, verify=False)

    def __enter__(self) -> Self:
        """Return self; connections are opened on demand."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self.http.close()

    def create(self, model: str, question: Any, **more: Any) -> Json:
        """Create a response and return it; the last event's, if it is streamed."""
        answer = self.http.post("/responses", json={"model": f"local/{model}", "input": question, **more})
        answer.raise_for_status()
        if more.get("stream"):
            return next(
                event["response"] for event in reversed(read_sse([answer.content]).events) if "response" in event
            )
        found: Json = answer.json()
        return found

    def conversation(self) -> str:
        """Create a conversation of two items, and return its id."""
        items = [{"type": "message", "role": role, "content": "Hello"} for role in ("user", "assistant")]
        answer = self.http.post("/conversations", json={"items": items, "metadata": {"topic": "demo"}})
        answer.raise_for_status()
        return str(answer.json()["id"])

    def about_response(self, response_id: str) -> Json:
        """Return what the server answers about a response."""
        path = f"/responses/{response_id}"
        return {
            "response": self._get(path),
            "input": self._get(f"{path}/input_items", order="asc", limit=100)["data"],
            "events": read_sse([self.http.get(path, params={"stream": "true"}).content]).events,
        }

    def about_conversation(self, conversation_id: str) -> Json:
        """Return what the server answers about a conversation."""
        path = f"/conversations/{conversation_id}"
        return {"conversation": self._get(path), "items": self._get(f"{path}/items", order="asc", limit=100)["data"]}

    def _get(self, path: str, **query: Any) -> Json:
        answer = self.http.get(path, params=query)
        answer.raise_for_status()
        found: Json = answer.json()
        return found


def differences(before: Any, now: Any, path: str = "") -> Iterator[str]:
    """Yield where `now` lacks or changes something of `before`, or adds what is not in `ADDED`."""
    if isinstance(before, dict) and isinstance(now, dict):
        yield from (f"{path}/{name} is gone" for name in before.keys() - now.keys())
        yield from (f"{path}/{name} is new" for name in now.keys() - before.keys() - ADDED)
        for name in before.keys() & now.keys():
            yield from differences(before[name], now[name], f"{path}/{name}")
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for number, (one, other) in enumerate(zip(before, now, strict=True)):
            yield from differences(one, other, f"{path}/{number}")
    elif before != now:
        yield f"{path} was {before!r} and is {now!r}"


def make_responses(asking: StoreClient) -> tuple[list[str], list[str]]:
    """Make responses of many kinds; return the ids of the responses and of the conversations."""
    responses = [asking.create("plain", "Hello", metadata={"name": "first"}, instructions="Be short. " * 60)]
    for model in ("thinks", "plain"):
        responses.append(
            asking.create(model, "And?", previous_response_id=responses[-1]["id"], stream=model == "thinks")
        )
    branch = asking.create("plain", "Or?", previous_response_id=responses[0]["id"], stream=True)
    called = asking.create("calls", "Weather?", tools=[WEATHER])
    output = [{"type": "function_call_output", "call_id": "call_1", "output": "rain"}]
    continued = asking.create("calls", output, previous_response_id=called["id"], tools=[WEATHER], stream=True)
    sealed = asking.create("thinks", "Why?", include=["reasoning.encrypted_content"])
    talk = asking.conversation()
    talked = [asking.create("plain", word, conversation=talk, stream=word == "two") for word in ("one", "two")]
    ended = [asking.create("long", "Count."), asking.create("breaks", "Count.", stream=True)]
    queued = asking.create("work", "Work.", background=True)
    while asking.about_response(queued["id"])["response"]["status"] not in ("completed", "failed"):
        pass
    return [each["id"] for each in [*responses, branch, called, continued, sealed, *talked, *ended, queued]], [talk]


def written(kind: Kind, checkout: Path, upstream: Upstream, folder: Path) -> GoldenStore:
    """Return what the version in `checkout` stores and answers."""
    for model, replies in SCRIPTS.items():
        upstream.script(model, replies)
    found = os.pathsep.join(map(str, (checkout, checkout / "providers" / "openai_chat")))
    env = {"PYTHONPATH": found, "INFERENCE_URL": upstream.base_url, "RESPONSES_SECRET": SECRET}
    template = checkout / "templates" / TEMPLATES[kind] / "config.yaml"
    config = variant(template, folder / "config.yaml", keep_for_ever)
    with serving(kind, folder / "server") as server:
        env |= server.environment if server else {}
        stack = LiveStack(config, env, folder / "state")
        with stack, StoreClient(stack) as asking:
            responses, conversations = make_responses(asking)
            unfinished = [asking.create(model, "Count.", background=True)["id"] for model in ("held", "work")]
            upstream.wait_for("held", chunks=1)
            answers = {name: asking.about_response(name) for name in responses}
            talks = {name: asking.about_conversation(name) for name in conversations}
            stack.kill()
        return GoldenStore(kind, dump(kind, server, folder / "state"), answers, talks, unfinished)


def main() -> None:
    """Write the golden stores of a checkout."""
    checkout, name = Path(sys.argv[1]).resolve(), sys.argv[2]
    FOLDER.mkdir(exist_ok=True)
    with TemporaryDirectory() as scratch, UpstreamProcess(Path(scratch) / "upstream.log") as process:
        for kind in [each for each in TEMPLATES if each in (sys.argv[3:] or TEMPLATES)]:
            folder = Path(scratch) / kind
            folder.mkdir()
            written(kind, checkout, process.client, folder).write(FOLDER / f"{name}-{kind}.json.xz")


if __name__ == "__main__":
    main()
