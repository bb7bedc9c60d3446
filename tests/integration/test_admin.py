"""The operator's commands on every store, while a server uses it."""

import json
import os
import re
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from threading import Event
from typing import Any, Final

import pytest
import yaml

from llama_stack_responses.chat.profile import Profile
from llama_stack_responses.cli import main
from tests.support.skills import archive
from tests.support.stack import REPOSITORY, STARTER, Host, LiveStack
from tests.support.stores import SERVERS, serving
from tests.support.upstream import Upstream, UpstreamProcess, error, reply, text
from tests.support.variants import responses_config, variant
from tests.support.waiting import wait_until
from tests.support.wire import Json, Wire, output_text

pytestmark = [
    pytest.mark.live,
    pytest.mark.both_hosts,
    pytest.mark.days_by("operated"),
    # The hosts read a deprecated field of their own.
    pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning"),
]

CLI: Final = [sys.executable, "-c", "import sys; from llama_stack_responses.cli import main; sys.exit(main())"]
MODEL: Final = "local/m"


class OperatedStack:
    """A stack, and the commands on its store."""

    def __init__(self, stack: LiveStack, config: Path, env: dict[str, str], kind: str) -> None:
        self.stack = stack
        self.config = config
        self.kind = kind
        self.env = env | {"STATE_DIR": str(stack.state_dir)}

    def run(self, name: str, *arguments: str, code: int = 0) -> str:
        """Run a command, and return what it prints; its errors, if it is to fail."""
        out, errors = StringIO(), StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(errors):
            for variable, value in self.env.items():
                patch.setenv(variable, value)
            assert main([name, "--config", str(self.config), *arguments]) == code, errors.getvalue()
        return errors.getvalue() if code else out.getvalue()

    def read(self, name: str, *arguments: str) -> list[Any]:
        """Run a command with `--json`, and return the values that it prints."""
        return [json.loads(line) for line in self.run(name, *arguments, "--json").splitlines()]

    def start(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a command that does not end."""
        command = [*CLI, name, "--config", str(self.config), *arguments]
        return subprocess.Popen(command, env={**os.environ, **self.env}, stdout=subprocess.PIPE, text=True)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("sqlite", marks=pytest.mark.one_host),
        *(pytest.param(each, marks=[pytest.mark.one_host, pytest.mark.extended]) for each in ("redis", "postgres")),
        pytest.param("host", marks=pytest.mark.extended),
    ],
)
def operated(
    request: pytest.FixtureRequest,
    host: Host,
    stack_env: dict[str, str],
    upstream_process: UpstreamProcess,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[OperatedStack]:
    """A stack with this store, which runs one background response at a time."""
    kind: str = request.param

    def change(config: Json) -> None:
        responses_config(config)["background"] = {"concurrency": 1}
        if kind == "host":
            responses_config(config)["store"] = {"type": "host"}

    folder = tmp_path_factory.mktemp(f"operated-{kind}")
    template = REPOSITORY / "templates" / kind / "config.yaml" if kind in SERVERS else STARTER
    config = variant(template, folder / "config.yaml", change)
    env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url}
    with ExitStack() as running:
        if server := running.enter_context(serving(kind, folder / "server")):
            env |= server.environment
        stack = running.enter_context(LiveStack(config, env, folder / "state", host=host))
        yield OperatedStack(stack, config, env, kind)


@pytest.fixture
def wire(operated: OperatedStack, upstream: Upstream) -> Iterator[Wire]:
    """A client of that stack."""
    with Wire(operated.stack) as wire:
        yield wire


def has_queue(operated: OperatedStack) -> bool:
    return operated.kind != "host"


def test_list_chain_and_show_find_stored_responses(operated: OperatedStack, wire: Wire, upstream: Upstream) -> None:
    upstream.script("m", reply(text("Hel", "lo")))
    first = wire.create(model=MODEL, input="Remember \x1b[31mred.")
    second = wire.create(model=MODEL, input="And?", previous_response_id=first["id"])
    listed = operated.read("list", "--limit", "2")
    assert [row["id"] for row in listed] == [second["id"], first["id"]]
    assert listed[0]["owner"] == {"principal": "", "attributes": {}, "tenant": ""}
    assert [row["id"] for row in operated.read("list", "--status", "failed")] == []
    assert second["id"] in {row["id"] for row in operated.read("list", "--model", MODEL, "--owner", "")}
    assert operated.read("list", "--owner", "unknown") == []
    assert [row["id"] for row in operated.read("chain", second["id"])] == [second["id"], first["id"]]
    [found] = operated.read("show", second["id"])
    assert found["response"] == second
    assert [item["role"] for item in found["input"]] == ["user", "assistant", "user"]
    table = operated.run("chain", second["id"])
    assert re.match(r"RESPONSE +CREATED +STATUS +MODEL +TOKENS +INPUT +ANSWER\n", table)
    assert "Remember �[31mred." in table
    assert "\x1b" not in table + operated.run("show", first["id"]) + operated.run("list")
    assert operated.run("show", "resp_0", code=1).endswith("There is no response 'resp_0' in this store.\n")
    assert operated.run("chain", "resp_0", code=1)


def test_tail_shows_new_responses(operated: OperatedStack, wire: Wire, upstream: Upstream) -> None:
    upstream.script("m", reply(text("Hello")))
    tail = operated.start("tail", "--json", "--limit", "1", "--every", "0.1")
    try:
        assert tail.stdout
        wire.create(model=MODEL, input="x")
        before = json.loads(tail.stdout.readline())["id"]
        responses = [wire.create(model=MODEL, input="x")["id"] for _ in range(3)]
        seen = {before}
        while not seen.issuperset(responses):
            seen.add(json.loads(tail.stdout.readline())["id"])
    finally:
        tail.kill()
        tail.communicate()


def test_queue_stats_and_delete_of_background_responses(
    operated: OperatedStack, wire: Wire, upstream: Upstream
) -> None:
    if not has_queue(operated):
        assert operated.read("queue") == []
        return
    upstream.script("held", reply(text("one ", "two"), hold=1))
    request = {"model": "local/held", "input": "x", "background": True}
    running, waiting = (wire.post(request).json()["id"] for _ in range(2))
    wait_until(lambda: sorted(each["state"] for each in operated.read("queue")) == ["running", "waiting"])
    queue = {each["id"]: each for each in operated.read("queue")}
    assert queue.keys() == {running, waiting}
    [idle] = [each for each in queue.values() if each["state"] == "waiting"]
    assert idle["waited"] > 0
    assert idle["worker"] is None
    assert "running" in operated.run("queue")
    [stats] = operated.read("stats")
    assert (stats["waiting"], stats["held by workers"], stats["workers"]) == (1, 1, 1)
    assert stats["responses"] >= 2
    assert stats["bytes"] > 0
    operated.run("delete", running, waiting, "--yes")
    assert operated.read("queue") == []
    assert [wire.get(f"/{each}").status_code for each in (running, waiting)] == [404, 404]
    upstream.reset()
    upstream.script("m", reply(text("Still ", "here.")))
    after = wire.create(model=MODEL, input="x", background=True)
    wait_until(lambda: wire.retrieve(after["id"])["status"] == "completed")
    assert output_text(wire.retrieve(after["id"])) == "Still here."


def test_profiles_prints_what_was_learned_about_model_servers(
    operated: OperatedStack, wire: Wire, upstream: Upstream
) -> None:
    no_user, cool = (error(400, f"Unsupported parameter: '{name}'") for name in ("user", "temperature"))
    upstream.script("picky", [no_user, cool, reply(text("Yes.")), cool, reply(text("Yes."))])
    for names in (["user"], ["user", "temperature"]):
        wire.create(model="local/picky", input="x", user="ada", temperature=0.5)
        expected = [{"match": "local/picky", "parameters": {"drop": names}}]
        wait_until(lambda expected=expected: operated.read("profiles") == expected)  # type: ignore[misc]
    [entry] = yaml.safe_load(operated.run("profiles"))
    assert Profile(**entry).parameters.drop == ["user", "temperature"]


def test_sweep_deletes_what_is_older_than_the_retention(
    operated: OperatedStack, wire: Wire, upstream: Upstream, tmp_path: Path
) -> None:
    def lower(config: Json) -> None:
        responses_config(config)["retention_days"] = 1e-9

    upstream.script("m", reply(text("Hello")))
    created = wire.create(model=MODEL, input="Hi")["created_at"]
    wait_until(lambda: time.time() > created + 1.1)
    assert operated.run("sweep").split() == ["deleted", "responses", "0"]
    stored = len(operated.read("list", "--limit", "1000"))
    lowered = OperatedStack(
        operated.stack, variant(operated.config, tmp_path / "config.yaml", lower), operated.env, operated.kind
    )
    assert f"This deletes {stored} of {stored} responses" in lowered.run("sweep", code=2)
    assert len(operated.read("list", "--limit", "1000")) == stored
    assert lowered.read("sweep", "--yes") == [{"deleted responses": stored}]
    assert operated.read("list") == []


def test_export_and_delete_of_an_owner_take_all_that_it_has(
    operated: OperatedStack, wire: Wire, upstream: Upstream, tmp_path: Path
) -> None:
    upstream.script("m", reply(text("Hello")))
    conversation = wire.http.post("/conversations", json={"metadata": {"topic": "demo"}}).json()["id"]
    wire.create(model=MODEL, input="x", conversation=conversation)
    skill = wire.http.post("/skills", files={"files": ("sums.zip", archive())}).json()["id"]
    note = {"file": ("note.txt", b"Buy milk.")}
    file = wire.http.post("/files", data={"purpose": "assistants"}, files=note).json()["id"]
    ids = {response["id"] for page in wire.pages(limit=100) for response in page["data"]}
    out = tmp_path / "owner.jsonl"
    operated.run("export", "--owner", "", "--out", str(out))
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert {line["response"]["id"] for line in lines if line["type"] == "response"} == ids
    [talk] = [line for line in lines if line.get("conversation", {}).get("id") == conversation]
    assert talk["conversation"]["metadata"] == {"topic": "demo"}
    assert [item["role"] for item in talk["items"]] == ["user", "assistant"]
    [stored] = [line for line in lines if line["type"] == "skill"]
    assert (stored["skill"]["id"], stored["skill"]["default_version"]) == (skill, "1")
    assert [(each["version"], b64decode(each["archive"])) for each in stored["versions"]] == [("1", archive())]
    assert operated.run("export", "--owner", "").count('"type": "response"') == len(ids)
    assert out.stat().st_mode & 0o077 == 0
    assert "already exists" in operated.run("export", "--owner", "", "--out", str(out), code=2)
    [counts] = operated.read("delete", "--owner", "unknown", "--yes")
    assert {f"deleted {kind}" for kind in ("responses", "conversations", "skills", "files")} <= counts.keys()
    assert set(counts.values()) == {0}
    assert f"This deletes {len(ids)} responses" in operated.run("delete", "--owner", "", code=2)
    assert wire.listed()
    operated.run("delete", "--owner", "", "--yes")
    assert wire.listed() == []
    assert wire.http.get(f"/conversations/{conversation}").status_code == 404
    assert wire.http.get(f"/skills/{skill}").status_code == 404
    assert wire.http.get(f"/files/{file}").status_code == 404
    assert "Not stored" in operated.run("delete", "resp_0", "--yes", code=1)
    assert "Not stored" in operated.run("delete", "resp_0", code=1)
    [stats] = operated.read("stats")
    assert (stats["responses"], stats["conversations"], stats["skills"]) == (0, 0, 0)
    operated.run("delete", code=2)


def emptied(operated: OperatedStack, kind: str, folder: Path, name: str = "restored") -> OperatedStack:
    """Return the same commands on an empty store: a file, or an unused part of the same server."""
    fresh: dict[str, Json] = {
        "sqlite": {"type": "sqlite", "path": str(folder / f"{name}.db")},
        "redis": {"prefix": f"{name}:"},
        "postgres": {"schema_name": name},
        "host": {"prefix": f"{name}:"},
    }

    def change(config: Json) -> None:
        settings = responses_config(config)
        settings["store"] = fresh[kind] if kind == "sqlite" else settings["store"] | fresh[kind]

    config = variant(operated.config, folder / f"{kind}.yaml", change)
    return OperatedStack(operated.stack, config, operated.env, kind)


def exported(operated: OperatedStack) -> dict[str, Json]:
    """Return all responses of the store with their inputs, by id."""
    lines = [json.loads(line) for line in operated.run("export", "--owner", "").splitlines()]
    return {line["response"]["id"]: line for line in lines if line["type"] == "response"}


def test_backup_under_load_is_restored_whole_into_empty_stores(
    operated: OperatedStack, wire: Wire, upstream: Upstream, tmp_path: Path
) -> None:
    upstream.script("m", reply(text("Hello ", "there")))
    chain = [wire.create(model=MODEL, input="0 " + "word " * 400)]
    for number in range(1, 10 if operated.kind == "host" else 30):
        chain.append(wire.create(model=MODEL, input=str(number), previous_response_id=chain[-1]["id"]))
    before = exported(operated)
    # The store of the host is for one process, and stays as it is.
    load = 0 if operated.kind == "host" else 3
    ended = Event()

    def work(number: int) -> None:
        last = chain[number]["id"]
        with Wire(operated.stack) as mine:
            while not ended.is_set():
                last = mine.create(model=MODEL, input="go on", previous_response_id=last)["id"]
                old = mine.create(model=MODEL, input="to be deleted")["id"]
                assert mine.http.delete(f"/responses/{old}").status_code == 200

    with ThreadPoolExecutor(4) as workers:
        tasks = [workers.submit(work, number) for number in range(load)]
        try:
            [created] = operated.read("backup", str(tmp_path / "backup"))
        finally:
            ended.set()
        for task in tasks:
            task.result()
    assert created["bytes"] == (tmp_path / "backup").stat().st_size
    assert (tmp_path / "backup").stat().st_mode & 0o077 == 0
    after = exported(operated)
    for kind in {"sqlite", operated.kind}:
        target = emptied(operated, kind, tmp_path)
        target.run("restore", str(tmp_path / "backup"))
        found = exported(target)
        assert before.items() <= found.items()
        assert all(found[each] == after[each] for each in found.keys() & after.keys())
        assert [row["id"] for row in target.read("chain", chain[-1]["id"])] == [each["id"] for each in chain[::-1]]
        assert "The store is not empty" in target.run("restore", str(tmp_path / "backup"), code=1)
        target.run("delete", chain[-1]["id"], "--yes")
        target.run("restore", str(tmp_path / "backup"), "--merge")
        assert exported(target) == found
    assert "already exists" in operated.run("backup", str(tmp_path / "backup"), code=2)
    check_backup_to_standard_output(operated, tmp_path)


def check_backup_to_standard_output(operated: OperatedStack, folder: Path) -> None:
    """Write a backup into a pipe, as out of a container, and restore it."""
    command = [*CLI, "backup", "-", "--config", str(operated.config), "--json"]
    ended = subprocess.run(command, env={**os.environ, **operated.env}, capture_output=True, check=True)
    assert json.loads(ended.stderr.splitlines()[-1])["bytes"] == len(ended.stdout)
    (folder / "piped").write_bytes(ended.stdout)
    target = emptied(operated, "sqlite", folder, "piped")
    target.run("restore", str(folder / "piped"))
    assert exported(target) == exported(operated)


def test_secret_of_the_store_is_printed_and_not_in_a_backup(
    operated: OperatedStack, wire: Wire, upstream: Upstream, tmp_path: Path
) -> None:
    upstream.script("m", reply(text("Hello")))
    wire.create(model=MODEL, input="x")
    [found] = operated.read("secret")
    assert len(b64decode(found["secret"])) == 32
    assert operated.run("secret") == f"{found['secret']}\n"
    operated.run("backup", str(tmp_path / "backup"))
    assert found["secret"].encode() not in (tmp_path / "backup").read_bytes()
    target = emptied(operated, operated.kind, tmp_path, "without_secret")
    target.run("restore", str(tmp_path / "backup"))
    assert "This store keeps no secret" in target.run("secret", code=1)


def test_damaged_backup_writes_nothing(operated: OperatedStack, wire: Wire, upstream: Upstream, tmp_path: Path) -> None:
    upstream.script("m", reply(text("Hello")))
    wire.create(model=MODEL, input="x")
    operated.run("backup", str(tmp_path / "backup"))
    data = (tmp_path / "backup").read_bytes()
    (tmp_path / "backup").write_bytes(data[:-5])
    target = emptied(operated, "sqlite", tmp_path)
    assert "damaged" in target.run("restore", str(tmp_path / "backup"), code=1)
    assert not (tmp_path / "restored.db").exists()
    assert "Cannot read" in target.run("restore", str(tmp_path / "none"), code=1)


def test_missing_store_is_refused_and_not_created(
    operated: OperatedStack, wire: Wire, upstream: Upstream, tmp_path: Path
) -> None:
    upstream.script("m", reply(text("Hello")))
    wire.create(model=MODEL, input="x")
    operated.run("stats")
    target = emptied(operated, operated.kind, tmp_path, "unused")
    commands = ("list", "stats", "queue", "show resp_0", "delete resp_0 --yes", "export --owner=")
    for command in (*commands, f"backup {tmp_path / 'backup'}", "list"):
        assert "There is no store" in target.run(*command.split(), code=1)
    assert not (tmp_path / "backup").exists()


def test_wrong_configuration_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("version: 2\n")
    assert main(["stats", "--config", str(wrong)]) == 2
    assert capsys.readouterr().err == (
        f"llama-stack-responses: {wrong} has a wrong setting:\n  line 1: 'providers': this setting is missing.\n"
    )
