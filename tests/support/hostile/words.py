"""The content of requests: JSON, characters, prompts, and headers with provider data."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from tests.support.prompts import PromptsClient
from tests.support.stack import Host
from tests.support.wire import Json, checked

from .attacker import Attacker, Attacks, client_error, judged, refused

ATTACKS: Final = Attacks()


LONG: Final = "x" * 200_000
PICTURE: Final = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 2_000, "detail": "auto"}


@ATTACKS.add(
    one=("{{a}}" * 5_000, {"a": LONG}),
    by_turns=("{{a}}{{b}}" * 2_000, {"a": LONG, "b": LONG}),
    many=("".join(f"{{{{v{n}}}}}" for n in range(200)), {f"v{n}": LONG for n in range(200)}),
    itself=("{{a}}" * 2_000, {"a": "{{a}}" * 2_000}),
    spaced=("{{ " + " " * 100_000 + "a" + " " * 100_000 + "}}" + "{{ a" * 20_000, {"a": LONG}),
    pictures=("{{a}}" * 8_000, {"a": PICTURE}),
)
def prompts_that_multiply(at: Attacker, case: tuple[str, Json]) -> None:
    said, variables = case
    prompt = PromptsClient(at.stack, at.token).write(said, *variables)
    judged(at.wire.post({"model": "local/done", "input": "x", "prompt": {"id": prompt, "variables": variables}}))


@ATTACKS.add()
def references_that_multiply(at: Attacker) -> None:
    body = {"items": [{"role": "user", "content": "x" * 1_000_000}]}
    created = at.wire.http.post("/conversations", json={}).json()
    [item] = at.wire.http.post(f"/conversations/{created['id']}/items", json=body).json()["data"]
    references = [{"type": "item_reference", "id": item["id"]}] * 5_000
    error = refused(at.wire.post({"model": "local/done", "input": references, "conversation": created["id"]}))
    assert "Duplicate item" in error["message"]


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


@ATTACKS.add(**{name.replace(" ", "_"): value for name, value in ODD_JSON.items()})
def odd_json(at: Attacker, case: bytes) -> None:
    bodies = [b'{"model": "local/done", "input": %b}', b'{"model": "local/done", "input": "x", "metadata": %b}']
    bodies += [b'{"model": "local/done", "input": "x", "max_output_tokens": %b}', b"%b"]
    for body in bodies:
        judged(at.wire.post(body % case))
    answer = at.wire.http.post("/conversations", content=bodies[0] % case, headers={"content-type": "application/json"})
    client_error(answer)


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
    lambda odd: {"tools": [{"type": "image_generation", "input_image_mask": odd, "size": odd}]},
    lambda odd: {"tools": [{"type": "file_search", "vector_store_ids": [odd]}]},
    lambda odd: {"tools": [{"type": "mcp", "server_label": odd, "server_url": odd}]},
    lambda odd: {"text": {"format": {"type": "json_schema", "name": odd, "schema": {odd: odd}}}},
    lambda odd: {"reasoning": {"effort": odd}},
    lambda odd: {"input": [{"type": "item_reference", "id": odd}]},
    lambda odd: {"input": [{"type": "image_generation_call", "id": odd, "result": odd, "revised_prompt": odd}]},
    lambda odd: {"input": [{"role": odd, "content": odd}]},
    lambda odd: {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": odd}]}]},
    lambda odd: {"input": [{"role": "user", "content": [{"type": "input_file", "file_data": odd, "filename": odd}]}]},
    lambda odd: {"input": [{"type": "function_call", "call_id": odd, "name": odd, "arguments": odd}]},
    lambda odd: {"input": [{"type": "function_call_output", "call_id": odd, "output": odd}]},
    lambda odd: {"input": [{"type": "reasoning", "id": odd, "summary": [], "encrypted_content": odd}]},
)


@ATTACKS.add(nul="a\u0000b", surrogate="\ud800")
def odd_characters_in_every_field(at: Attacker, case: str) -> None:
    for fields in FIELDS:
        body = {"model": "local/done", "input": "x", **fields(case)}
        answer = at.wire.post(json.dumps(body))
        judged(answer)
        if answer.status_code == 200:
            checked(at.wire.get(f"/{answer.json()['id']}"))


@ATTACKS.add()
def odd_characters_in_ids_and_queries(at: Attacker) -> None:
    for odd in ("%00", "%ff", "a" * 5_000, "..%2f..", "%0d%0a", "resp_%00"):
        for path in (f"/responses/{odd}", f"/conversations/{odd}"):
            refused(at.wire.http.get(path), 404 if "%2f" in odd else 400)
        for path in (f"/containers/{odd}", f"/containers/{odd}/files"):
            refused(at.wire.http.get(path), 400, 404)
        for name in ("after", "limit", "include[]"):
            for path in ("/responses", "/containers"):
                client_error(at.wire.http.get(f"{path}?{name}={odd}"))
        key = {"idempotency-key": odd}
        judged(at.wire.http.post("/responses", json={"model": "local/done", "input": odd}, headers=key))


HEADER: Final[Mapping[Host, str]] = {"llama_stack": "x-llamastack-provider-data", "ogx": "x-ogx-provider-data"}


@ATTACKS.add(
    string=b'"x"',
    array=b"[1]",
    null=b"null",
    cut=b"{",
    bytes=b'{"a": "\xff"}',
    deep_arrays=b'{"a": ' + b"[" * 60_000,
    deep_objects=b'{"a":' * 12_000 + b"1" + b"}" * 12_000,
    digits=b'{"a": ' + b"1" * 60_000 + b"}",
    huge=b'{"a": "' + b"x" * 200_000 + b'"}',
    endless=b"x" * 5_000_000,
)
def provider_data_that_is_none(at: Attacker, case: bytes) -> None:
    for line in ("GET /v1/responses", "POST /v1/responses", "GET /v1/models", "DELETE /v1/conversations/conv_1"):
        assert status_of(at, line, case) in (0, 400, 431)


def status_of(at: Attacker, line: str, provider_data: bytes) -> int:
    """Return the status of a request with this provider data; 0 if the connection just ended."""
    header = HEADER[at.host].encode() + b": " + provider_data
    with suppress(ConnectionError), at.raw(line, header, "connection: close") as connection:
        return int((connection.recv(65_536).split(b" ", 2)[1:2] or [b"0"])[0])
    return 0


@ATTACKS.add(
    number=5,
    none=None,
    array=["x"],
    object={"a": {}},
    empty="",
    line="a\r\nx-smuggled: y",
    nul="a\0b",
    surrogate="\ud800",
    wide="\u20ac",
    long="x" * 20_000,
)
def provider_data_of_odd_types(at: Attacker, case: Any) -> None:
    """Nor can the host's own identity be set with it."""
    data = {"openai_chat_api_key": case, "local_api_key": case, "__authenticated_user": {"principal": "bob"}}
    headers = {HEADER[at.host]: json.dumps(data)}
    answer = at.wire.http.post("/responses", json={"model": "local/done", "input": "x"}, headers=headers)
    if answer.status_code == 200:
        assert at.wire.retrieve(checked(answer)["id"])
        listed = at.wire.http.get("/responses", headers=headers, params={"model": "local/echo"})
        assert listed.json()["data"] == []
    else:
        refused(answer)
