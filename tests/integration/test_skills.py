"""Stored skills: the routes below `/v1/skills`, and tools and containers that refer to them."""

import json
import zipfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any, Final

import httpx
import openai
import pytest
from openai.types import DeletedSkill, Skill, SkillList
from openai.types.skills import DeletedSkillVersion, SkillVersion, SkillVersionList

from tests.support.conform import problems
from tests.support.openai_client import MODEL, NAME, Json, create, stored, stream, tool_outputs
from tests.support.skills import FILES, MANIFEST, archive, skill
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.upstream import Reply, Upstream, UpstreamProcess, reply, text, tool_call
from tests.support.waiting import wait_until
from tests.support.wire import Wire, error_of

pytestmark = pytest.mark.live

SAID: Final = reply(text("Done."))
LISTED: Final = "Skill 'sums', described in /mnt/data/skills/sums/SKILL.md: Adds numbers."
ADD: Final = "skills/sums/scripts/add.sh 20 22"
SECOND: Final = b"---\nname: sums\ndescription: Adds more numbers.\n---\nNothing to run.\n"
UNKNOWN: Final = "skill_000000000000000000000000"


@pytest.fixture(autouse=True)
def _no_skills_left(client: openai.OpenAI) -> Iterator[None]:
    yield
    for each in client.skills.list():
        client.skills.delete(each.id)


def commands(*lines: str, hold: int | None = None) -> Reply:
    """Return a reply that runs commands."""
    return reply(tool_call(0, "c1", "shell", json.dumps({"commands": lines})), hold=hold)


def refers(skill_id: str, **version: Any) -> Json:
    """Return a reference to a skill."""
    return {"type": "skill_reference", "skill_id": skill_id, **version}


def with_skills(*skills: Json) -> list[tuple[Json, str]]:
    """Return both tools with these skills, each with the path of its skills in a request."""
    return [
        ({"type": "shell", "environment": {"type": "container_auto", "skills": skills}}, "environment.skills"),
        ({"type": "code_interpreter", "container": {"type": "auto", "skills": skills}}, "container.skills"),
    ]


def described(upstream: Upstream) -> str:
    """Return the description of the only function that the model received."""
    [tool] = upstream.requests(NAME)[-1].body["tools"]
    description: str = tool["function"]["description"]
    return description


def json_of(answer: httpx.Response, kind: Any) -> Json:
    """Check an answer against the SDK's types and return its JSON."""
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    assert problems(kind, body) == []
    return body


def damaged() -> bytes:
    """Return an archive in which the content of one file has another byte."""
    zipped = bytearray(archive())
    zipped[60] ^= 1
    return bytes(zipped)


def as_form(files: Mapping[str, bytes]) -> list[tuple[str, tuple[str, bytes]]]:
    """Return the files of a folder as a form has them."""
    return [("files[]", file) for file in files.items()]


def test_skill_is_created_from_archive_and_from_folder(client: openai.OpenAI) -> None:
    zipped = archive()
    of_archive = client.skills.create(files=("sums.zip", zipped, "application/zip"))
    of_folder = client.skills.create(files=list(FILES.items()))
    for each in (of_archive, of_folder):
        assert (each.object, each.name, each.description) == ("skill", "sums", "Adds numbers.")
        assert (each.default_version, each.latest_version) == ("1", "1")
        assert client.skills.retrieve(each.id) == each
    assert client.skills.content.retrieve(of_archive.id).read() == zipped
    with zipfile.ZipFile(BytesIO(client.skills.content.retrieve(of_folder.id).read())) as packed:
        assert {name: packed.read(name) for name in packed.namelist()} == FILES
        assert packed.getinfo("sums/scripts/add.sh").external_attr >> 16 == 0o100755
    alone = client.skills.create(files=[("SKILL.md", MANIFEST)])
    assert alone.name == "sums"
    listed = [each.id for each in client.skills.list(limit=2)]
    assert listed == [alone.id, of_folder.id, of_archive.id]
    assert [each.id for each in client.skills.list(order="asc", limit=1)] == listed[::-1]
    deleted = client.skills.delete(of_folder.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (of_folder.id, True, "skill.deleted")
    with pytest.raises(openai.NotFoundError, match="not found") as missing:
        client.skills.retrieve(of_folder.id)
    assert missing.value.param == "skill_id"


def test_versions_of_skill(client: openai.OpenAI) -> None:
    created = client.skills.create(files=list(FILES.items()))
    second = client.skills.versions.create(created.id, files=[("SKILL.md", SECOND)])
    assert (second.object, second.skill_id, second.version) == ("skill.version", created.id, "2")
    assert client.skills.retrieve(created.id).latest_version == "2"
    assert client.skills.retrieve(created.id).description == "Adds numbers."
    third = client.skills.versions.create(created.id, files=("a.zip", archive({"SKILL.md": SECOND})), default=True)
    assert client.skills.retrieve(created.id).default_version == "3"
    assert [each.version for each in client.skills.versions.list(created.id, limit=1)] == ["3", "2", "1"]
    assert [each.id for each in client.skills.versions.list(created.id, order="asc")][1:] == [second.id, third.id]
    assert client.skills.versions.retrieve("2", skill_id=created.id) == second
    with pytest.raises(openai.BadRequestError, match="set another one first"):
        client.skills.versions.delete("3", skill_id=created.id)
    updated = client.skills.update(created.id, default_version="2")
    assert (updated.default_version, updated.description) == ("2", "Adds more numbers.")
    gone = client.skills.versions.delete("3", skill_id=created.id)
    assert (gone.id, gone.version, gone.object) == (third.id, "3", "skill.version.deleted")
    assert client.skills.retrieve(created.id).latest_version == "2"
    content = client.skills.versions.content
    with zipfile.ZipFile(BytesIO(content.retrieve("2", skill_id=created.id).read())) as packed:
        assert packed.read("SKILL.md") == SECOND
    for call in (client.skills.versions.retrieve, content.retrieve, client.skills.versions.delete):
        with pytest.raises(openai.NotFoundError, match="has no version '3'") as missing:
            call("3", skill_id=created.id)
        assert missing.value.param == "version"
    client.skills.versions.delete("1", skill_id=created.id)
    client.skills.versions.delete("2", skill_id=created.id)
    with pytest.raises(openai.NotFoundError):
        client.skills.retrieve(created.id)


def test_answers_have_the_form_of_the_types(wire: Wire) -> None:
    created = json_of(wire.http.post("/skills", files=as_form(FILES)), Skill)
    path = f"/skills/{created['id']}"
    json_of(wire.http.get("/skills"), SkillList)
    json_of(wire.http.get(path), Skill)
    added = wire.http.post(f"{path}/versions", files=as_form({"SKILL.md": SECOND}), data={"default": "true"})
    assert json_of(added, SkillVersion)["version"] == "2"
    json_of(wire.http.post(path, json={"default_version": 2}), Skill)
    json_of(wire.http.get(f"{path}/versions"), SkillVersionList)
    json_of(wire.http.get(f"{path}/versions/1"), SkillVersion)
    content = wire.http.get(f"{path}/versions/1/content")
    assert (content.status_code, content.headers["content-type"]) == (200, "application/zip")
    assert content.headers["content-disposition"] == 'attachment; filename="sums.zip"'
    json_of(wire.http.delete(f"{path}/versions/1"), DeletedSkillVersion)
    json_of(wire.http.delete(path), DeletedSkill)


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"a.zip": b"text"}, "Its data is not a zip archive."),
        ({"a.zip": archive()[:-30]}, "Its data is not a zip archive."),
        ({"a.zip": damaged()}, "does not match its size and checksum"),
        ({"a.zip": archive({"a/SKILL.md": MANIFEST, "b/SKILL.md": MANIFEST})}, "must have one file 'SKILL.md'"),
        ({"a.zip": archive({"SKILL.md": MANIFEST, "bomb": bytes(26 * 2**20)})}, "'bomb' has more than 25 MiB"),
        ({"../SKILL.md": MANIFEST, "a": b""}, "is not a relative path"),
        ({"/SKILL.md": MANIFEST}, "is not a relative path"),
        ({"s/SKILL.md": MANIFEST, "t/a": b""}, "must have one file 'SKILL.md'"),
        ({"SKILL.md": b"Run it."}, "must begin with front matter"),
        ({"SKILL.md": b"---\nname: a\ndescription: b\n" + bytes(10_000) + b"\n---\n"}, "must begin with front matter"),
        ({"SKILL.md": b"---\nname: [a\n---\n"}, "not valid YAML"),
        ({"SKILL.md": b"---\n- name\n---\n"}, "not a mapping"),
        ({"SKILL.md": b"---\nname: a\n---\n"}, "no text as 'description'"),
        ({"SKILL.md": b"---\nname: a b\ndescription: c\n---\n"}, "1 to 64 letters"),
        ({"SKILL.md": b"---\nname: a\ndescription: " + b"c" * 1025 + b"\n---\n"}, "more than 1024 characters"),
    ],
)
def test_files_that_are_no_skill_are_400(wire: Wire, files: Mapping[str, bytes], why: str) -> None:
    error = error_of(wire.http.post("/skills", files=as_form(files)), 400)
    assert why in error["message"]
    assert (error["param"], error["code"]) == ("files", "invalid_value")
    assert wire.http.get("/skills").json()["data"] == []


def test_wrong_requests_are_400(wire: Wire) -> None:
    created: Json = wire.http.post("/skills", files=as_form(FILES)).json()
    path = f"/skills/{created['id']}"
    bodies: list[Json] = [{"json": {}}, {"files": [("purpose", (None, "x"))]}, {"files": [("other", ("a", b""))]}]
    for body in bodies:
        for url in ("/skills", f"{path}/versions"):
            error_of(wire.http.post(url, **body), 400)
    many = as_form({f"{number}": b"" for number in range(501)})
    assert error_of(wire.http.post("/skills", files=many), 400)["param"] == "files"
    wrong = wire.http.post(f"{path}/versions", files=as_form(FILES), data={"default": "perhaps"})
    assert error_of(wrong, 400)["param"] == "default"
    for version in ({}, {"default_version": "latest"}, {"default_version": 0}, {"default_version": None}):
        assert error_of(wire.http.post(path, json=version), 400)["param"] == "default_version"
    assert error_of(wire.http.post(path, json={"default_version": "2"}), 404)["param"] == "version"
    assert error_of(wire.http.get(f"{path}/versions/latest"), 400)["param"] == "version"
    assert error_of(wire.http.get("/skills/none"), 400)["param"] == "skill_id"
    for url in ("/skills", f"{path}/versions"):
        assert error_of(wire.http.get(url, params={"after": UNKNOWN}), 400)["param"] == "after"
        assert error_of(wire.http.get(url, params={"limit": 101}), 400)["param"] == "limit"
    for method, url in (("GET", ""), ("DELETE", ""), ("GET", "/content"), ("GET", "/versions"), ("GET", "/versions/1")):
        assert error_of(wire.http.request(method, f"/skills/{UNKNOWN}{url}"), 404)["param"] == "skill_id"


def test_shell_reads_referenced_skill_and_runs_its_script(client: openai.OpenAI, upstream: Upstream) -> None:
    created = client.skills.create(files=list(FILES.items()))
    [(tool, _), _] = with_skills(refers(created.id))
    upstream.script(NAME, [commands("cat skills/sums/SKILL.md", ADD), SAID, commands(ADD), SAID])
    first = stream(client, model=MODEL, input="Hi", tools=[tool]).response
    assert [each["stdout"] for each in first["output"][1]["output"]] == [MANIFEST.decode(), "42\n"]
    assert described(upstream).endswith(f"\n{LISTED}")
    [echoed] = stored(client, first["id"])["tools"]
    assert echoed["environment"]["skills"] == [refers(created.id, version="1")]
    # The echoed tool is a valid one.
    second = create(client, model=MODEL, input="On", tools=[echoed], previous_response_id=first["id"])
    assert second["output"][1]["output"][0]["stdout"] == "42\n"


def test_python_and_created_container_have_referenced_skill(client: openai.OpenAI, upstream: Upstream) -> None:
    created = client.skills.create(files=("a.zip", archive()))
    client.skills.versions.create(created.id, files=[("SKILL.md", SECOND)])
    [_, (tool, _)] = with_skills(refers(created.id, version="1"), skill("more"))
    code = json.dumps({"code": f"import subprocess\nsubprocess.run({ADD!r}, shell=True)"})
    upstream.script(NAME, [reply(tool_call(0, "c1", "python", code)), SAID])
    create(client, model=MODEL, input="Hi", tools=[tool])
    assert tool_outputs(upstream)[-1].startswith("42\n")
    assert LISTED in described(upstream)
    assert "Skill 'more'" in described(upstream)
    references: Any = [refers(created.id, version="latest")]
    container = client.containers.create(name="skilled", skills=references)
    [file] = client.containers.files.list(container.id)
    assert client.containers.files.content.retrieve(file.id, container_id=container.id).read() == SECOND
    client.containers.delete(container.id)


@pytest.mark.parametrize(
    "more", [{"background": True}, {"store": False}, {}], ids=["background", "not stored", "whole"]
)
def test_version_is_fixed_when_request_is_accepted(client: openai.OpenAI, upstream: Upstream, more: Json) -> None:
    """The container gets its skills with the first call, after the default version has changed."""
    created = client.skills.create(files=list(FILES.items()))
    [(tool, _), _] = with_skills(refers(created.id))
    upstream.script(NAME, [commands("cat skills/sums/SKILL.md", hold=0), SAID])
    request: Any = {"model": MODEL, "input": "Hi", "tools": [tool], "stream": True, **more}
    with client.responses.create(**request) as events:
        upstream.wait_for(NAME, 1)
        client.skills.versions.create(created.id, files=[("SKILL.md", SECOND)], default=True)
        upstream.release(NAME)
        response = list(events)[-1].response
    assert response.status == "completed"
    assert response.tools[0].environment.skills[0].version == "1"
    assert response.output[1].output[0].stdout == MANIFEST.decode()


def test_model_gets_error_if_skill_is_deleted_before_first_call(client: openai.OpenAI, upstream: Upstream) -> None:
    created = client.skills.create(files=list(FILES.items()))
    [(tool, _), _] = with_skills(refers(created.id))
    upstream.script(NAME, [commands("ls", hold=0), SAID])
    request: Any = {"model": MODEL, "input": "Hi", "tools": [tool], "stream": True}
    with client.responses.create(**request) as events:
        upstream.wait_for(NAME, 1)
        client.skills.delete(created.id)
        upstream.release(NAME)
        assert list(events)[-1].response.status == "completed"
    assert f"The skill '{created.id}' cannot be put into the container." in str(tool_outputs(upstream)[-1])


@pytest.mark.parametrize("more", [{}, {"background": True}, {"stream": True}], ids=["whole", "background", "streamed"])
def test_reference_to_missing_skill_or_version_is_404(client: openai.OpenAI, upstream: Upstream, more: Json) -> None:
    created = client.skills.create(files=list(FILES.items()))
    for wrong, field in ((refers(UNKNOWN), "skill_id"), (refers(created.id, version="2"), "version")):
        for tool, path in with_skills(refers(created.id), wrong):
            request: Any = {"model": MODEL, "input": "Hi", **more}
            with pytest.raises(openai.NotFoundError) as missing:
                client.responses.create(**{**request, "tools": [tool]})
            assert missing.value.param == f"tools[0].{path}[1].{field}"
            carried: Any = [{"type": "additional_tools", "role": "developer", "tools": [tool]}]
            with pytest.raises(openai.NotFoundError) as missing:
                client.responses.create(**{**request, "input": [*carried, {"role": "user", "content": "Hi"}]})
            assert missing.value.param == f"input[0].tools[0].{path}[1].{field}"
        references: Any = [refers(created.id), wrong]
        with pytest.raises(openai.NotFoundError) as missing:
            client.containers.create(name="none", skills=references)
        assert missing.value.param == f"skills[1].{field}"
    assert upstream.requests(NAME) == []


def test_two_skills_of_one_name_are_400(client: openai.OpenAI) -> None:
    created = client.skills.create(files=list(FILES.items()))
    [(tool, path), _] = with_skills(skill(), refers(created.id))
    for more in ({}, {"background": True}):
        with pytest.raises(openai.BadRequestError, match="has the name 'sums' already") as refused:
            create(client, model=MODEL, input="Hi", tools=[tool], **more)
        assert refused.value.param == f"tools[0].{path}[1].skill_id"


def test_archive_that_is_too_large_is_413(wire: Wire) -> None:
    too_large = {"SKILL.md": MANIFEST, "a": bytes(25 * 2**20), "b": bytes(25 * 2**20)}
    assert error_of(wire.http.post("/skills", files=as_form(too_large)), 413)["code"] == "request_too_large"


def test_concurrent_versions_have_different_numbers(client: openai.OpenAI) -> None:
    created = client.skills.create(files=list(FILES.items()))
    with ThreadPoolExecutor() as threads:
        added = threads.map(lambda _: client.skills.versions.create(created.id, files=list(FILES.items())), range(5))
    assert {each.version for each in added} == {"2", "3", "4", "5", "6"}


@pytest.mark.extended
def test_skills_survive_kill_of_server(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path: Path
) -> None:
    """Skills that were created are whole. An upload that the kill interrupts is a whole skill, or none."""
    zipped, created = archive({"SKILL.md": MANIFEST, "noise": Random(1).randbytes(3 * 2**20)}), list[str]()
    env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url}

    def upload(client: openai.OpenAI) -> None:
        with suppress(openai.OpenAIError):
            while True:
                created.append(client.skills.create(files=("sums.zip", zipped)).id)

    with LiveStack(STARTER, env, tmp_path / "state", host=host) as stack, ThreadPoolExecutor() as threads:
        with stack.client().with_options(max_retries=0) as client:
            uploads = [threads.submit(upload, client) for _ in range(2)]
            wait_until(lambda: len(created) > 2)
            stack.kill()
            wait(uploads)
        stack.start()
        with stack.client() as client:
            listed = [each.id for each in client.skills.list()]
            assert set(created) <= set(listed)
            for each in listed:
                assert client.skills.content.retrieve(each).read() == zipped
                client.skills.delete(each)
            assert list(client.skills.list()) == []
