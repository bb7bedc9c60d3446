"""Golden stores: what each released version stored, and what it answered about it, in `tests/golden/<version>/`.

    make golden

writes those of this version, before its tag: it starts the host on each store, makes responses of many kinds over HTTP,
kills the server while background responses wait and run, and writes `<store>.json.xz`: the answers, and the store as it
was left. It also writes the rows of `tests/contract/golden.py`, a backup file, and the package itself, which later
versions run beside theirs on one store.

`postgres-layout-1.json.xz` stays as it is: servers kept such rows before the partition was a part of their keys.
"""

from __future__ import annotations

import asyncio
import io
import json
import lzma
import sqlite3
import subprocess
import sys
import tarfile
from base64 import b64decode, b64encode
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal, Self

import httpx
from redis import Redis

from tests.support.postgres import program
from tests.support.script import Reply, error, finish, reasoning, reply, text, tool_call
from tests.support.sse import read_sse
from tests.support.stack import REPOSITORY, LiveStack
from tests.support.stores import serving
from tests.support.upstream import Upstream, UpstreamProcess
from tests.support.variants import responses_config, variant

type Json = dict[str, Any]
type Kind = Literal["sqlite", "redis", "postgres"]

FOLDER: Final = Path(__file__).parents[1] / "golden"
VERSION: Final = version("llama-stack-responses")
PACKAGE: Final = ("llama_stack_responses", "providers/openai_chat/llama_stack_openai_chat", "templates")
"""What a server needs of a checkout."""
TEMPLATES: Final[dict[Kind, str]] = {"sqlite": "starter", "redis": "redis", "postgres": "postgres"}
SECRET: Final = b64encode(bytes(range(32))).decode()
WEATHER: Final = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
WHOLE: Final = reply(text("one ", "two ", "three"))
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
    responses_config(config).update(background={"concurrency": 1}, retention_days=None)


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


def written(kind: Kind, upstream: Upstream, folder: Path) -> GoldenStore:
    """Return what this version stores and answers."""
    for model, replies in SCRIPTS.items():
        upstream.script(model, replies)
    env = {"INFERENCE_URL": upstream.base_url, "RESPONSES_SECRET": SECRET}
    template = REPOSITORY / "templates" / TEMPLATES[kind] / "config.yaml"
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


def golden_files(suffix: str) -> list[Path]:
    """Return the files of all versions whose names end so, the oldest version first."""
    return sorted(FOLDER.glob(f"*/*{suffix}"))


def newest_file(name: str) -> Path:
    """Return the newest version's file of this name."""
    return golden_files(name)[-1]


def _is_released() -> bool:
    tags = subprocess.run(["git", "tag", "--list", f"v{VERSION}"], cwd=REPOSITORY, capture_output=True, check=True)
    return bool(tags.stdout.strip())


def _write_rows(folder: Path) -> None:
    from tests.contract.golden import STORES
    from tests.contract.golden import written as rows_written
    from tests.contract.test_snapshots import ROWS
    from tests.contract.test_snapshots import written as backup_written

    for name in STORES:
        content = json.dumps(asyncio.run(rows_written(name)), indent=1)
        (folder / f"{name}.json").write_text(content + "\n")
    (folder / "backup.bin").write_bytes(backup_written(*ROWS))


def _write_package(folder: Path) -> None:
    """Write the tracked files of the package, without those of the page, which no test of two versions opens."""
    listed = subprocess.run(["git", "ls-files", *PACKAGE], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    with tarfile.open(folder / "package.tar.xz", "w:xz", preset=9) as archive:
        for name in listed.stdout.split():
            if "/page/static/" not in name:
                entry = tarfile.TarInfo(name)
                data = (REPOSITORY / name).read_bytes()
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))


def main() -> None:
    """Write the golden stores of this version."""
    if _is_released():
        sys.exit(f"{VERSION} is released: its golden stores stay as they are. Raise the version first.")
    target = FOLDER / VERSION
    target.mkdir(parents=True, exist_ok=True)
    _write_rows(target)
    _write_package(target)
    with TemporaryDirectory() as scratch, UpstreamProcess(Path(scratch) / "upstream.log") as process:
        for kind in TEMPLATES:
            folder = Path(scratch) / kind
            folder.mkdir()
            written(kind, process.client, folder).write(target / f"{kind}.json.xz")


if __name__ == "__main__":
    main()
