"""The command `doctor`, with model servers over HTTP in a thread."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from llama_stack_responses.cli import main
from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.features.doctor.checks import CHECKS
from llama_stack_responses.features.doctor.doctor_command import _without
from tests.support.certificates import Certificates
from tests.support.doctored_server import DoctoredServer, in_thread, template, unknown
from tests.support.http_server import OPENING, Peer, whole

KEY: Final = "sk-very-secret-0123456789"
CLI: Final = [sys.executable, "-c", "import sys; from llama_stack_responses.console import main; sys.exit(main())"]


class Ran:
    """What a command has printed, and its exit code."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> None:
        self.code = main(["doctor", *arguments])
        self.out, self.errors = capsys.readouterr()

    @property
    def sentence(self) -> str:
        """The only line of its errors, if it has failed."""
        assert self.code in (1, 2)
        assert self.out == ""
        [line] = self.errors.splitlines()
        assert re.fullmatch(r"llama-stack-responses: \S.*[.]", line)
        assert KEY not in line
        return line.removeprefix("llama-stack-responses: ")


type Run = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: Ran(capsys, *arguments)


def test_table_says_what_works_and_ends_with_the_entry_to_paste(run: Run) -> None:
    server = DoctoredServer([unknown("user"), template("system_first"), template("no_images")])
    with in_thread(server) as running:
        ran = run(running.url)
    assert ran.code == 0
    assert ran.errors == ""
    lines = ran.out.splitlines()
    assert lines[0].split() == ["CHECK", "RESULT", "WHAT", "HAPPENS"]
    rows = {title: line for check in CHECKS for line in lines if line.startswith(title := f"{check.title}  ")}
    assert len(rows) == len(CHECKS)
    assert re.search(
        r"  adapted  system_first: System message must be at the beginning\.$", rows["system messages behind others  "]
    )
    assert re.search(r"  lost     no_images: the model gets a note", rows["images  "])
    assert f"m at {running.url}: {len(server.chats)} requests in " in ran.out
    entry = json.loads(lines[-1].removeprefix("- "))
    assert entry["dialect"] == ["no_images", "system_first"]
    assert entry["parameters"] == {"drop": ["user"]}
    assert ResponsesConfig(profiles=[entry]).profiles[0].match == "*/m"


def test_json_is_one_line_with_all_findings(run: Run) -> None:
    with in_thread(DoctoredServer()) as running:
        ran = run(running.url, "m", "--json")
    report = json.loads(ran.out)
    assert [each["name"] for each in report["findings"]] == [check.name for check in CHECKS]
    assert (report["server"], report["model"], report["context_length"]) == (running.url, "m", 4096)


def test_url_without_path_gets_the_usual_one(run: Run) -> None:
    with in_thread(DoctoredServer()) as running:
        ran = run(running.url.removesuffix("/v1"), "--json")
    assert json.loads(ran.out)["server"] == running.url


@pytest.mark.parametrize("option", ["--key", "--key-env"])
def test_key_is_sent_and_never_printed(run: Run, monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    monkeypatch.setenv("A_KEY", KEY)

    def quotes(chat: Any) -> str | None:
        return f"not supported for {KEY}: {KEY[:10]}" if "logprobs" in chat else None

    with in_thread(DoctoredServer([quotes], key=KEY)) as running:
        ran = run(running.url, option, KEY if option == "--key" else "A_KEY")
        wrong = run(running.url, "m", option, "sk-another-one-123" if option == "--key" else "HOME")
    assert ran.code == 0
    assert KEY[:10] not in ran.out + ran.errors
    assert "not supported for ***" in ran.out
    expected = (
        f"The model server at {running.url} refuses the key (401): name the variable with the right one with --key-env."
    )
    assert wrong.sentence == expected


def test_hidden_key_leaves_no_part_of_it() -> None:
    assert _without(KEY, f"a {KEY} b {KEY[:9]}") == "a *** b ***"
    assert _without("none", "none") == "none"
    assert _without("", "a") == "a"


def test_several_models_are_listed_and_one_has_to_be_named(run: Run) -> None:
    with in_thread(DoctoredServer(models=["a", "b\x1b[0m"])) as running:
        ran = run(running.url)
        assert run(running.url, "a", "--json").code == 0
    assert ran.sentence == f"The model server at {running.url} has several models: name one of a, b�[0m."


# What fails


def test_dead_server_is_one_sentence(run: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        ran = run(f"http://127.0.0.1:{port}/v1")
    assert ran.sentence == f"Nothing answers at 127.0.0.1:{port}: start the model server, or check the URL."


def test_unknown_host_is_one_sentence(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown_name(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown_name)
    said = run("http://there-is-none.invalid/v1").sentence
    assert said == "The name of there-is-none.invalid cannot be found: check the URL."


async def page(peer: Peer) -> None:
    """Answer with a page."""
    await peer.request()
    await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 14\r\n\r\n<h1>Hello</h1>")


async def nothing(peer: Peer) -> None:
    """Answer nothing."""
    await peer.request()
    await peer.left()


async def endless(peer: Peer) -> None:
    """Answer with a list that never ends."""
    await peer.request()
    await peer.send(OPENING.replace(b"text/event-stream", b"application/json"))
    while True:
        await peer.send(b"4\r\n    \r\n")
        await asyncio.sleep(0.01)


async def elsewhere(peer: Peer) -> None:
    """Redirect."""
    await peer.request()
    await peer.send(b"HTTP/1.1 307 Moved\r\nlocation: https://elsewhere.example/v1\r\ncontent-length: 0\r\n\r\n")


async def plain(peer: Peer) -> None:
    """Refuse what is no HTTP."""
    await peer.reader.read(5)
    await peer.send(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")


async def missing(peer: Peer) -> None:
    """Know no path."""
    await peer.request()
    await peer.send(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")


async def loading(peer: Peer) -> None:
    """List one model, and answer nothing else yet, as llama.cpp."""
    if (await peer.request()).line.startswith("GET"):
        await peer.send(whole(200, {"data": [{"id": "m"}]}))
    else:
        await peer.send(whole(503, {"error": {"message": "Loading model", "code": 503}}))


async def unknown_model(peer: Peer) -> None:
    """List one model, and know none."""
    if (await peer.request()).line.startswith("GET"):
        await peer.send(whole(200, {"data": [{"id": "llama"}]}))
    else:
        await peer.send(whole(404, {"error": {"message": "The model does not exist."}}))


@pytest.mark.relatives
@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (
            page,
            "status 200 and content type 'text/html' instead of a list of models: check the URL, which usually ends in /v1.",
        ),
        (nothing, "within 1 seconds: if it loads a model or is slow, "),
        (loading, "Loading model: see the log of the model server at http://127.0.0.1:"),
        (endless, "does not list its models within 1 seconds: "),
        (elsewhere, "redirects to https://elsewhere.example/v1: "),
        (missing, "There is no chat API at"),
    ],
)
@pytest.mark.parametrize("model", [[], ["m"]], ids=["listed", "named"])
def test_server_that_cannot_be_asked_is_one_sentence(
    run: Run, handler: Callable[[Peer], Any], words: str, model: list[str]
) -> None:
    with in_thread(handler) as running:
        said = run(running.url, *model, "--seconds", "1").sentence
    assert model or words in said
    assert re.search(r"check|try again|wait|URL", said)


def test_model_that_the_server_does_not_list_is_said(run: Run) -> None:
    with in_thread(DoctoredServer(models=["a", "b"])) as running:
        ran = run(running.url, "other", "--json")
    assert ran.code == 0
    [line] = ran.errors.splitlines()
    assert "does not list other, but a, b: another model may have answered." in line
    assert json.loads(ran.out)["model"] == "other"


def test_model_that_the_server_does_not_know_is_said_with_those_that_it_lists(run: Run) -> None:
    with in_thread(unknown_model) as running:
        assert run(running.url, "m").sentence == "The model does not exist: name one of llama."


def test_certificate_of_an_unknown_authority_is_one_sentence_and_can_be_named(run: Run, tmp_path: Path) -> None:
    certificates = Certificates.create_in(tmp_path / "certificates")
    with in_thread(DoctoredServer(), tls=certificates.of_server()) as running:
        said = run(running.url).sentence
        assert run(running.url, "--ca", certificates.path("ca.pem"), "--json").code == 0
    assert re.match(
        r"The certificate of 127.0.0.1:\d+ is not valid \(.+\): name the file with its authority with --ca", said
    )


def test_server_without_tls_at_https_is_one_sentence(run: Run) -> None:
    with in_thread(plain) as running:
        said = run(running.url.replace("http", "https")).sentence
    assert re.match(r"There is no TLS at 127.0.0.1:\d+ \(.+\): check whether the URL begins with http://\.", said)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["http://user:secret@127.0.0.1/v1"],
            "The URL cannot be used: it has to be of the form https://HOST:PORT/PATH; the variable with a key is named",
        ),
        (["http://127.0.0.1:99999/v1"], "The URL cannot be used: it has to be of the form"),
        (["http://127.0.0.1/v1", "--key-env", "NOT_SET"], "The environment variable NOT_SET is not set"),
        (["http://127.0.0.1/v1", "--key", "a\nb"], "A key or a header for the model server has characters"),
        (
            ["http://127.0.0.1/v1", "--ca", "none.pem"],
            "There is no file none.pem: name the certificates of the authority with --ca.",
        ),
        ([], "Name the URL of a model server, or with --config a stack's configuration: there is no config.yaml"),
    ],
)
def test_wrong_argument_is_one_sentence(run: Run, arguments: list[str], words: str) -> None:
    ran = run(*arguments)
    assert words in ran.sentence
    assert ran.code == 2


# The configuration

CONFIG: Final = """
providers:
  inference:
  - provider_id: ${env.ONE_URL:+one}
    provider_type: remote::openai-chat
    config: {base_url: "${env.ONE_URL:=}", api_key: "${env.ONE_KEY:=}"}
  - provider_id: two
    provider_type: remote::vllm
    config: {base_url: "${env.TWO_URL:=}"}
  - provider_id: inline
    provider_type: inline::other
"""


def test_all_providers_of_the_configuration_are_examined(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    with in_thread(DoctoredServer([unknown("user")], key=KEY)) as one, in_thread(DoctoredServer()) as two:
        monkeypatch.setenv("ONE_URL", one.url)
        monkeypatch.setenv("ONE_KEY", KEY)
        monkeypatch.setenv("TWO_URL", two.url)
        ran = run("--json")
        named = run("two/m", "--json")
        wrong = run("three/m")
        monkeypatch.setenv("ONE_KEY", "another")
        refused = run("--json")
    first, second = map(json.loads, ran.out.splitlines())
    assert (first["server"], first["profile"]["match"]) == ("one", "one/m")
    assert (second["server"], second["profile"]["match"]) == ("two", "two/m")
    assert json.loads(named.out)["server"] == "two"
    assert "'three/m' is no URL" in wrong.sentence
    assert refused.code == 1
    assert json.loads(refused.out)["server"] == "two"
    assert refused.errors.endswith("refuses the key (401): check 'api_key' of the provider 'one'.\n")


def test_object_store_of_the_configuration_is_tried(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = "\n  responses: [{provider_id: own, provider_type: inline::kv, config: {archive: {url: '${env.PLACE:=}'}}}]\n"
    (tmp_path / "config.yaml").write_text(CONFIG.rstrip() + own)
    (tmp_path / "file").touch()
    with in_thread(DoctoredServer()) as two:
        monkeypatch.setenv("TWO_URL", two.url)
        monkeypatch.setenv("PLACE", f"file://{tmp_path}/cold")
        works, told = run("--json"), run()
        monkeypatch.setenv("PLACE", f"file://{tmp_path}/file/cold")
        failed = [run("--json"), run("two/m", "--json")]
    _, tried = map(json.loads, works.out.splitlines())
    assert (works.code, tried["feature"], tried["outcome"]) == (0, "cold", "works")
    assert told.out.endswith(
        f"\nObjects in file://{tmp_path}/cold of 'archive' can be written, read, listed and deleted.\n"
    )
    for each in failed:
        assert each.code == 1
        assert len(each.out.splitlines()) == 1
        assert "cannot write files in file://" in each.errors


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a: [", "it is not YAML"),
        ("a: 1", "it has no providers.inference"),
        ("providers: {inference: 3}", "providers.inference is no list"),
        ("[]", "is not a stack's configuration"),
        ("providers: {inference: [{provider_id: '${env.NOT_SET}'}]}", "takes NOT_SET from the environment"),
        ("providers: {inference: []}", "has no inference provider with the URL of a model server"),
    ],
)
def test_wrong_configuration_is_one_sentence(run: Run, tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "config.yaml").write_text(content)
    assert words in run().sentence


# The terminal


@pytest.mark.extended
def test_terminal_shows_the_progress_and_ctrl_c_says_how_far_it_came(tmp_path: Path) -> None:
    server = DoctoredServer()

    class Silent(Peer):
        async def send(self, data: bytes) -> None:
            if "image_url" in str(server.chats[-1:]):
                await self.reader.read()  # until the client is gone: a closed connection would end the check
            await super().send(data)

    with in_thread(lambda peer: server(Silent(peer.reader, peer.writer, peer.server, peer.number))) as running:
        terminal, inner = pty.openpty()
        child = subprocess.Popen([*CLI, "doctor", running.url], stdin=inner, stdout=inner, stderr=inner, cwd=tmp_path)
        os.close(inner)
        shown = b""
        while b"21 of 31 checks of m: images" not in shown:
            shown += os.read(terminal, 4096)
        child.send_signal(signal.SIGINT)
        assert child.wait() == 130
        while piece := read(terminal):
            shown += piece
        os.close(terminal)
    assert (
        shown.decode()
        .rstrip()
        .endswith("\x1b[Kllama-stack-responses: Stopped after 21 of 31 checks: run it again for all of them.")
    )


def read(terminal: int) -> bytes:
    """Return what a terminal has to read; empty at the end."""
    try:
        return os.read(terminal, 4096)
    except OSError:
        return b""


def test_terminal_of_few_columns_has_long_notes_on_several_lines(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    printed = Terminal()
    monkeypatch.setenv("COLUMNS", "80")
    with in_thread(DoctoredServer([lambda chat: "n" * 20 + " m" * 60 if "logprobs" in chat else None])) as running:
        monkeypatch.setattr(sys, "stdout", printed)
        run(running.url)
    lines = printed.getvalue().splitlines()
    table = lines[: lines.index("")]
    assert len(table) > len(CHECKS) + 1
    assert max(map(len, table)) <= 80
