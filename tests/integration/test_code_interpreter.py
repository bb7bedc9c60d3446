"""Code and shell commands in containers, through the API: calls, items, files, chains and errors."""

import json
import re
from base64 import b64decode
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Final

import openai
import pytest

from tests.support.openai_client import MODEL, NAME, Json, create, stored, stream
from tests.support.skills import MANIFEST, archive, skill
from tests.support.upstream import Reply, Upstream, reply, text, tool_call
from tests.support.waiting import wait_until

# Containers do not depend on the host.
pytestmark = [pytest.mark.live, pytest.mark.one_host]

TOOL: Final[Json] = {"type": "code_interpreter", "container": {"type": "auto"}}
OUTPUTS: Final = ["code_interpreter_call.outputs"]
SAID: Final = reply(text("Done."))


def python(code: str) -> Reply:
    """Return a reply that calls Python, with the arguments in several deltas."""
    arguments = json.dumps({"code": code})
    third = len(arguments) // 3
    return reply(tool_call(0, "c1", "python", arguments[:third], arguments[third : 2 * third], arguments[2 * third :]))


def last_output(upstream: Upstream, request: int = -1) -> str:
    """Return the last tool output that the model received."""
    [*_, last] = [each for each in upstream.requests(NAME)[request].body["messages"] if each["role"] == "tool"]
    content: str = last["content"]
    return content


def code_calls(response: Json) -> list[Json]:
    return [item for item in response["output"] if item["type"] == "code_interpreter_call"]


def test_code_call_streams_its_events_in_order(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, [python("print('hi')\n6 * 7"), SAID])
    streamed = stream(client, model=MODEL, input="Hi", tools=[TOOL], include=OUTPUTS)
    [call] = code_calls(streamed.response)
    assert (call["status"], call["code"]) == ("completed", "print('hi')\n6 * 7")
    assert call["outputs"] == [{"type": "logs", "logs": "hi\n42\n"}]
    assert last_output(upstream) == "hi\n42"
    names = [event["type"].removeprefix("response.") for event in streamed.events if event.get("output_index") == 0]
    deltas = names.count("code_interpreter_call_code.delta")
    assert deltas > 1
    assert list(dict.fromkeys(names)) == [
        "output_item.added",
        "code_interpreter_call.in_progress",
        "code_interpreter_call_code.delta",
        "code_interpreter_call_code.done",
        "code_interpreter_call.interpreting",
        "code_interpreter_call.completed",
        "output_item.done",
    ]


def test_code_outputs_are_absent_without_include(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, [python("1"), SAID])
    [call] = code_calls(create(client, model=MODEL, input="Hi", tools=[TOOL]))
    assert call["outputs"] is None


def test_model_is_told_which_packages_are_installed(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, SAID)
    shell: Json = {"type": "shell", "environment": {"type": "container_auto"}}
    create(client, model=MODEL, input="Hi", tools=[TOOL, shell])
    [sent] = upstream.requests(NAME)
    listed = rf"Installed packages: matplotlib {version('matplotlib')}, numpy {version('numpy')}, pandas [\d.]+\."
    for tool in sent.body["tools"]:
        assert re.search(listed, tool["function"]["description"])


@pytest.mark.extended  # the unit test of the packages draws the same
def test_shown_figure_is_image_and_cited_file(client: openai.OpenAI, upstream: Upstream) -> None:
    code = "import pandas, matplotlib.pyplot as plt\nplot = pandas.Series([12, 15]).plot.bar()\nplt.show()"
    upstream.script(NAME, [python(code), reply(text("Here: 【f1】"))])
    response = create(client, model=MODEL, input="Hi", tools=[TOOL], include=OUTPUTS)
    [call], [*_, message] = code_calls(response), response["output"]
    [image] = call["outputs"]
    assert image["type"] == "image"
    drawn = b64decode(image["url"].removeprefix("data:image/png;base64,"))
    assert drawn.startswith(b"\x89PNG")
    assert "(1 figure was drawn, and is shown to the user.)" in last_output(upstream)
    [cited] = message["content"][0]["annotations"]
    assert (cited["type"], cited["filename"]) == ("container_file_citation", "figure-1.png")
    content = client.containers.files.content.retrieve(cited["file_id"], container_id=cited["container_id"])
    assert content.read() == drawn


def test_sdk_stream_helper_reads_code_call(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, [python("1 + 1"), SAID])
    request: Any = {"model": MODEL, "input": "Hi", "tools": [TOOL]}
    with client.responses.stream(**request) as events:
        final = events.get_final_response()
    assert [item.type for item in final.output] == ["code_interpreter_call", "message"]


def test_chain_keeps_variables_and_replays_code_calls(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, [python("x = 41"), SAID, python("x + 1"), SAID])
    first = create(client, model=MODEL, input="Hi", tools=[TOOL])
    second = create(client, model=MODEL, input="On", tools=[TOOL], previous_response_id=first["id"], include=OUTPUTS)
    [before], [after] = code_calls(first), code_calls(second)
    assert before["container_id"] == after["container_id"]
    assert after["outputs"] == [{"type": "logs", "logs": "42\n"}]
    replayed = upstream.requests(NAME)[2].body["messages"]
    assert [each["role"] for each in replayed] == ["user", "assistant", "tool", "assistant", "user"]
    assert replayed[2]["content"] == "(The code ended without printing anything.)"
    assert "exchange" not in str(client.responses.input_items.list(second["id"]).to_dict())
    assert "exchange" not in str(stored(client, first["id"]))


@pytest.mark.parametrize(
    ("include", "seen"), [(OUTPUTS, "42"), ([], "(Its output is no longer available.)")], ids=["shown", "hidden"]
)
def test_code_call_sent_back_by_client_is_replayed(
    client: openai.OpenAI, upstream: Upstream, include: Any, seen: str
) -> None:
    upstream.script(NAME, [python("x = 42\nprint(x)"), SAID, python("x + 1"), SAID])
    request: Any = {"model": MODEL, "tools": [TOOL], "store": False}
    first = create(client, input="Hi", include=include, **request)
    history: Any = [{"role": "user", "content": "Hi"}, *first["output"], {"role": "user", "content": "On"}]
    second = create(client, input=history, **request)
    [call, output] = [each for each in upstream.requests(NAME)[2].body["messages"] if each["role"] != "user"][:2]
    [called] = call["tool_calls"]
    assert (called["function"]["name"], json.loads(called["function"]["arguments"])) == (
        "python",
        {"code": "x = 42\nprint(x)"},
    )
    assert output["content"] == seen
    assert last_output(upstream) == "43"
    assert code_calls(second)[0]["container_id"] == code_calls(first)[0]["container_id"]


def test_container_and_file_lists_are_paginated(client: openai.OpenAI) -> None:
    responses = [client.containers.create(name=f"page {number}").id for number in range(3)]
    try:
        listed = [each.id for each in client.containers.list(limit=1)]
        assert [each for each in listed if each in responses] == responses[::-1]
        assert len(listed) == len(set(listed))
        assert [each.id for each in client.containers.list(limit=1, order="asc") if each.id in responses] == responses
        assert [each.id for each in client.containers.list(name="page 1")] == [responses[1]]
        names = [f"{number}.txt" for number in range(3)]
        sent = [client.containers.files.create(responses[0], file=(name, b"a")).id for name in names]
        assert [each.id for each in client.containers.files.list(responses[0], limit=2)] == sent[::-1]
        assert [each.id for each in client.containers.files.list(responses[0], limit=1, order="asc")] == sent
        with pytest.raises(openai.BadRequestError, match="Nothing with the id 'cfile_none' is in this list"):
            client.containers.files.list(responses[0], after="cfile_none")
    finally:
        for container in responses:
            client.containers.delete(container)


def test_container_files_are_uploaded_and_downloaded(client: openai.OpenAI, upstream: Upstream) -> None:
    container = client.containers.create(name="mine")
    client.containers.files.create(container.id, file=("numbers.csv", b"1,2,3"))
    upstream.script(
        NAME, [python("open('sum.txt', 'w').write(str(sum(map(int, open('numbers.csv').read().split(',')))))"), SAID]
    )
    create(client, model=MODEL, input="Hi", tools=[{"type": "code_interpreter", "container": container.id}])
    assert "\u3010f1\u3011 /mnt/data/sum.txt" in last_output(upstream)
    listed = {file.path: file for file in client.containers.files.list(container.id)}
    assert {path: file.source for path, file in listed.items()} == {
        "/mnt/data/numbers.csv": "user",
        "/mnt/data/sum.txt": "assistant",
    }
    created = listed["/mnt/data/sum.txt"]
    assert client.containers.files.retrieve(created.id, container_id=container.id).bytes == 1
    assert client.containers.files.content.retrieve(created.id, container_id=container.id).read() == b"6"
    assert container.id in [each.id for each in client.containers.list()]
    client.containers.delete(container.id)
    with pytest.raises(openai.NotFoundError, match="It has expired"):
        client.containers.retrieve(container.id)


def test_uploaded_files_are_copied_into_containers(client: openai.OpenAI) -> None:
    a, b = (client.files.create(file=(f"{name}.txt", name.encode()), purpose="assistants").id for name in "ab")
    container = client.containers.create(name="filled", file_ids=[a])
    copied = client.containers.files.create(container.id, file_id=b)
    assert (copied.path, copied.bytes, copied.source) == ("/mnt/data/b.txt", 1, "user")
    assert [each.path for each in client.containers.files.list(container.id, order="asc")] == [
        "/mnt/data/a.txt",
        "/mnt/data/b.txt",
    ]
    client.containers.delete(container.id)


def test_container_is_not_created_without_its_files(client: openai.OpenAI) -> None:
    before = [each.id for each in client.containers.list()]
    a = client.files.create(file=("a.txt", b"a"), purpose="assistants").id
    with pytest.raises(openai.APIStatusError, match="'file-none' cannot be put into the container") as refused:
        client.containers.create(name="empty", file_ids=[a, "file-none"])
    assert refused.value.param == "file_ids[1]"
    assert [each.id for each in client.containers.list()] == before
    container = client.containers.create(name="kept")
    with pytest.raises(openai.APIStatusError, match="'file-none'"):
        client.containers.files.create(container.id, file_id="file-none")
    with pytest.raises(openai.BadRequestError, match="Missing required parameter: 'file_id'"):
        client.containers.files.create(container.id)
    client.containers.delete(container.id)


def test_file_of_a_container_is_deleted(client: openai.OpenAI, upstream: Upstream) -> None:
    container = client.containers.create(name="tidied")
    for name in ("kept.txt", "left.txt"):
        client.containers.files.create(container.id, file=(name, b"1"))
    upstream.script(
        NAME, [python("import os\nos.makedirs('a/b')\nopen('a/b/c', 'w').close()\nos.chmod('a/b', 0o500)"), SAID]
    )
    create(client, model=MODEL, input="Hi", tools=[{"type": "code_interpreter", "container": container.id}])
    files = {file.path: file.id for file in client.containers.files.list(container.id)}
    for path in ("/mnt/data/left.txt", "/mnt/data/a/b/c"):
        client.containers.files.delete(files[path], container_id=container.id)
        with pytest.raises(openai.NotFoundError, match="No file with id"):
            client.containers.files.delete(files[path], container_id=container.id)
    assert [each.path for each in client.containers.files.list(container.id)] == ["/mnt/data/kept.txt"]
    client.containers.delete(container.id)


def test_upload_over_container_size_is_400(client: openai.OpenAI) -> None:
    container = client.containers.create(name="full")
    client.containers.files.create(container.id, file=("a", bytes(20 * 2**20)))
    with pytest.raises(
        openai.BadRequestError, match="'b' does not fit into the container, whose files may take 32 MiB"
    ):
        client.containers.files.create(container.id, file=("b", bytes(20 * 2**20)))
    client.containers.delete(container.id)


def test_container_file_marker_in_answer_becomes_citation(client: openai.OpenAI, upstream: Upstream) -> None:
    mention = text("Here: \u3010", "f1\u3011.")
    upstream.script(NAME, [python("open('sum.txt', 'w').write('6')"), reply(mention), reply(mention)])
    response = create(client, model=MODEL, input="Hi", tools=[TOOL])
    [call] = code_calls(response)
    again = create(client, model=MODEL, input="Where?", tools=[TOOL], previous_response_id=response["id"])
    for each in (response, again):
        part = each["output"][-1]["content"][0]
        assert part["text"] == "Here: [sum.txt](sandbox:/mnt/data/sum.txt)."
        [citation] = part["annotations"]
        cited = part["text"][citation["start_index"] : citation["end_index"]]
        assert (citation["type"], citation["filename"], citation["container_id"], cited) == (
            "container_file_citation",
            "sum.txt",
            call["container_id"],
            "[sum.txt](sandbox:/mnt/data/sum.txt)",
        )
        place = {"file_id": citation["file_id"], "container_id": citation["container_id"]}
        assert client.containers.files.content.retrieve(**place).read() == b"6"


def test_new_container_contains_the_given_file_ids(client: openai.OpenAI, upstream: Upstream) -> None:
    uploaded = client.files.create(file=("a.txt", b"from the files API"), purpose="assistants")
    upstream.script(NAME, [python("print(open('a.txt').read())"), SAID])
    tool = {"type": "code_interpreter", "container": {"type": "auto", "file_ids": [uploaded.id]}}
    create(client, model=MODEL, input="Hi", tools=[tool])
    assert last_output(upstream) == "from the files API"


CROWD = "import os, time\nfor _ in range(100):\n    os.fork() or (time.sleep(60), os._exit(0))"
"""More processes than the limit, but few enough for a machine on which the kernel does not enforce it."""


@pytest.mark.parametrize(
    ("code", "status", "news"),
    [
        ("1/0", "completed", "ZeroDivisionError"),
        (CROWD, "completed", "BlockingIOError"),
        ("import os; os._exit(3)", "failed", "The code was stopped. The Python process exited"),
        ("import socket; socket.create_connection(('127.0.0.1', 80))", "completed", "Address family not supported"),
    ],
    ids=["an error", "many processes", "a sudden end", "the server's own network"],
)
def test_failure_of_code_is_reported_to_the_model(
    client: openai.OpenAI, upstream: Upstream, code: str, status: str, news: str
) -> None:
    upstream.script(NAME, [python(code), SAID])
    response = create(client, model=MODEL, input="Hi", tools=[TOOL])
    assert [call["status"] for call in code_calls(response)] == [status]
    assert news in last_output(upstream)


def test_code_call_in_missing_container_fails(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, [python("1"), SAID])
    response = create(client, model=MODEL, input="Hi", tools=[{"type": "code_interpreter", "container": "cntr_gone"}])
    [call] = code_calls(response)
    assert (call["status"], call["container_id"]) == ("failed", "cntr_gone")
    assert last_output(upstream).startswith("Container 'cntr_gone' was not found")


def test_tool_choice_code_interpreter_requires_the_first_call_only(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, [python("1"), SAID])
    create(client, model=MODEL, input="Hi", tools=[TOOL], tool_choice={"type": "code_interpreter"})
    assert [request.body["tool_choice"] for request in upstream.requests(NAME)] == ["required", "auto"]


def test_client_disconnect_stops_running_code(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, [python("open('begun', 'w')\nwhile True: pass"), SAID])
    container = client.containers.create(name="left")
    tool = {"type": "code_interpreter", "container": container.id}
    request: Any = {"model": MODEL, "input": "Hi", "tools": [tool]}
    with client.responses.create(**request, stream=True) as events:
        for event in events:
            if event.type == "response.code_interpreter_call.interpreting":
                break
        wait_until(lambda: bool(list(client.containers.files.list(container.id))))
    upstream.script(NAME, [python("import os; print(os.path.exists('begun'))"), SAID])
    response = create(client, model=MODEL, input="Hi", tools=[tool])
    assert [call["status"] for call in code_calls(response)] == ["completed"]
    assert last_output(upstream) == "True"


# A shell in a container

SHELL: Final[Json] = {"type": "shell", "environment": {"type": "container_auto"}}


def commands(*lines: str, **more: Any) -> Reply:
    """Return a reply that calls the shell."""
    return reply(tool_call(0, "c1", "shell", json.dumps({"commands": lines, **more})))


def test_shell_call_streams_events_of_each_command(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, [commands("echo one > a; cat a", "ls nowhere"), SAID])
    streamed = stream(client, model=MODEL, input="Hi", tools=[SHELL])
    call, output, _ = streamed.response["output"]
    assert (call["type"], call["status"], call["action"]["commands"]) == (
        "shell_call",
        "completed",
        ["echo one > a; cat a", "ls nowhere"],
    )
    assert call["environment"]["type"] == "container_reference"
    assert output["call_id"] == call["call_id"]
    assert [entry["outcome"] for entry in output["output"]] == [
        {"type": "exit", "exit_code": 0},
        {"type": "exit", "exit_code": 2},
    ]
    assert output["output"][0]["stdout"] == "one\n"
    assert "nowhere" in output["output"][1]["stderr"]
    names = [event["type"].removeprefix("response.") for event in streamed.events if "command_index" in event]
    command_output = [f"shell_call_command.{step}" for step in ("added", "delta", "done")]
    assert names == command_output * 2 + ["shell_call_output_content.delta", "shell_call_output_content.done"] * 2
    assert last_output(upstream).startswith("Exit code: 0\none\n")


def test_chain_keeps_shell_container_and_replays_calls(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, [commands("echo kept > a"), SAID, commands("cat a"), SAID])
    first = create(client, model=MODEL, input="Hi", tools=[SHELL])
    second = create(client, model=MODEL, input="On", tools=[SHELL], previous_response_id=first["id"])
    assert second["output"][1]["output"][0]["stdout"] == "kept\n"
    replayed = upstream.requests(NAME)[2].body["messages"]
    assert [each["role"] for each in replayed] == ["user", "assistant", "tool", "assistant", "user"]
    again = [item for response in (first, second) for item in ({"role": "user", "content": "Hi"}, *response["output"])]
    upstream.script(NAME, [SAID])
    create(client, model=MODEL, input=again, tools=[SHELL], store=False)
    assert [each["role"] for each in upstream.requests(NAME)[-1].body["messages"]].count("tool") == 2


def test_shell_timeout_and_missing_container_are_reported(client: openai.OpenAI, upstream: Upstream) -> None:
    stdout = ""
    for milliseconds in (1_000, 10_000, 100_000):  # a busy machine prints nothing within a second
        # The container's start does not count for the second call.
        upstream.script(NAME, [commands("true"), commands("echo begun; sleep 600", timeout_ms=milliseconds), SAID])
        response = create(client, model=MODEL, input="Hi", tools=[SHELL])
        [entry] = response["output"][3]["output"]
        assert (entry["stderr"], entry["outcome"]) == ("", {"type": "timeout"})
        if stdout := entry["stdout"]:
            break
    assert stdout == "begun\n"
    upstream.script(NAME, [commands("ls"), SAID])
    gone = {"type": "shell", "environment": {"type": "container_reference", "container_id": "cntr_gone"}}
    response = create(client, model=MODEL, input="Hi", tools=[gone])
    assert [item["type"] for item in response["output"]] == ["shell_call", "message"]
    assert response["output"][0]["status"] == "incomplete"
    upstream.script(NAME, [SAID])
    create(client, model=MODEL, input="On", tools=[gone], previous_response_id=response["id"])


def test_failed_shell_call_is_replayed_in_next_turn(client: openai.OpenAI, upstream: Upstream) -> None:
    gone = {"type": "shell", "environment": {"type": "container_reference", "container_id": "cntr_gone"}}
    upstream.script(NAME, [commands("ls"), SAID, SAID])
    first = create(client, model=MODEL, input="Hi", tools=[gone])
    assert first["output"][0]["status"] == "incomplete"
    create(client, model=MODEL, input="On", tools=[gone], previous_response_id=first["id"])
    assert [each["role"] for each in upstream.requests(NAME)[2].body["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    assert "Container 'cntr_gone' was not found" in last_output(upstream)


def test_missing_file_id_of_container_is_named_to_the_model(
    client: openai.OpenAI, upstream: Upstream, calm: None
) -> None:
    upstream.script(NAME, [python("1"), python("2"), SAID])
    tool = {"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["file-none"]}}
    response = create(client, model=MODEL, input="Hi", tools=[tool])
    assert [call["status"] for call in code_calls(response)] == ["failed", "failed"]
    assert "The file 'file-none' cannot be put into the container." in last_output(upstream, 1)
    assert "The file 'file-none' cannot be put into the container." in last_output(upstream)


# Skills

LISTED: Final = "Skill 'sums', described in /mnt/data/skills/sums/SKILL.md: Adds numbers."
ADD: Final = "skills/sums/scripts/add.sh 20 22"


def with_skills(*skills: Json) -> list[tuple[Json, str]]:
    """Return both tools with these skills, each with the path of its skills in a request."""
    return [
        ({"type": "shell", "environment": {"type": "container_auto", "skills": skills}}, "environment.skills"),
        ({"type": "code_interpreter", "container": {"type": "auto", "skills": skills}}, "container.skills"),
    ]


def described(upstream: Upstream, request: int = -1) -> str:
    """Return the description of the only function that the model received."""
    [tool] = upstream.requests(NAME)[request].body["tools"]
    description: str = tool["function"]["description"]
    return description


def test_shell_reads_skill_and_runs_its_script(client: openai.OpenAI, upstream: Upstream) -> None:
    [(tool, _), _] = with_skills(skill())
    upstream.script(NAME, [commands("cat skills/sums/SKILL.md", ADD), SAID, commands("cat skills/sums/SKILL.md"), SAID])
    first = stream(client, model=MODEL, input="Hi", tools=[tool]).response
    assert [each["stdout"] for each in first["output"][1]["output"]] == [MANIFEST.decode(), "42\n"]
    assert described(upstream, 0).endswith(f"\n{LISTED}")
    [echoed] = stored(client, first["id"])["tools"]
    assert echoed == first["tools"][0]
    assert echoed["environment"]["skills"] == [skill(zipped=b"")]
    # The container of the chain keeps its skills, also for a request that declares none.
    second = create(client, model=MODEL, input="On", tools=[SHELL], previous_response_id=first["id"])
    assert second["output"][1]["output"][0]["stdout"] == MANIFEST.decode()
    assert LISTED in described(upstream)


@pytest.mark.parametrize("more", [{"background": True}, {"store": False}], ids=["background", "not stored"])
def test_python_runs_script_of_skill(client: openai.OpenAI, upstream: Upstream, more: Json) -> None:
    [_, (tool, _)] = with_skills(skill())
    upstream.script(NAME, [python(f"import subprocess\nsubprocess.run({ADD!r}, shell=True)"), SAID])
    stream(client, model=MODEL, input="Hi", tools=[tool], **more)
    assert last_output(upstream).startswith("42\n")
    assert LISTED in described(upstream)


def test_container_created_with_skill_shows_it_to_both_tools(client: openai.OpenAI, upstream: Upstream) -> None:
    container = client.containers.create(name="skilled", skills=[skill()])  # type: ignore[list-item]
    assert {file.path: file.source for file in client.containers.files.list(container.id)} == {
        "/mnt/data/skills/sums/SKILL.md": "user",
        "/mnt/data/skills/sums/scripts/add.sh": "user",
    }
    shell = {"type": "shell", "environment": {"type": "container_reference", "container_id": container.id}}
    for tool, call in (
        (shell, commands(ADD)),
        ({"type": "code_interpreter", "container": container.id}, python(f"import os\nos.system({ADD!r})")),
    ):
        upstream.script(NAME, [call, SAID])
        create(client, model=MODEL, input="Hi", tools=[tool])
        assert LISTED in described(upstream)
        assert "42" in last_output(upstream)
    client.containers.delete(container.id)


@pytest.mark.parametrize(
    ("files", "why"),
    [
        (None, "Its data is empty, as in the tools of a response."),
        (b"text", "Its data is not a zip archive."),
        ({"../SKILL.md": b""}, "The path '../SKILL.md' in its zip archive is not a relative path"),
        ({"SKILL.md": b"", "bomb": bytes(26 * 2**20)}, "Its file 'bomb' has more than 25 MiB."),
    ],
    ids=["echoed", "no archive", "path", "bomb"],
)
def test_skill_with_wrong_archive_is_400(
    client: openai.OpenAI, upstream: Upstream, files: Mapping[str, bytes] | bytes | None, why: str
) -> None:
    wrong = skill("wrong", archive(files) if isinstance(files, Mapping) else files or b"")
    for tool, path in with_skills(skill(), wrong):
        for more in ({}, {"background": True}, {"stream": True}):
            request: Any = {"model": MODEL, "input": "Hi", "tools": [tool], **more}
            with pytest.raises(openai.BadRequestError, match="The skill 'wrong' cannot") as refused:
                client.responses.create(**request)
            assert why in str(refused.value)
            assert (refused.value.param, refused.value.code) == (f"tools[0].{path}[1].source.data", "invalid_value")
    before = [each.id for each in client.containers.list()]
    with pytest.raises(openai.BadRequestError, match="The skill 'wrong' cannot be put into the container") as refused:
        client.containers.create(name="none", skills=[skill(), wrong])  # type: ignore[list-item]
    assert refused.value.param == "skills[1].source.data"
    assert [each.id for each in client.containers.list()] == before
    assert upstream.requests(NAME) == []
