"""The description of this package's routes in the stack's /openapi.json."""

from collections.abc import Iterator
from typing import Any, Final, get_type_hints

import httpx
import pytest
from jsonschema import Draft202012Validator
from openai.types.container_list_params import ContainerListParams
from openai.types.containers.file_list_params import FileListParams
from openai.types.conversations.item_create_params import ItemCreateParams
from openai.types.conversations.item_list_params import ItemListParams
from openai.types.conversations.item_retrieve_params import ItemRetrieveParams
from openai.types.responses.input_item_list_params import InputItemListParams
from openai.types.responses.response_retrieve_params import ResponseRetrieveParamsStreaming

from llama_stack_responses.requests.request import parse_create
from tests.support.features import features, refused
from tests.support.openai_client import MODEL, NAME
from tests.support.prompts import PromptsClient
from tests.support.stack import LiveStack
from tests.support.upstream import Upstream, reply, text
from tests.support.wire import Json, Wire, error_of

pytestmark = [pytest.mark.live, pytest.mark.both_hosts]

ANSWER = reply(text("Hello"))
IN_QUERIES: Final[dict[str, type]] = {
    "GET /v1/responses/{response_id}": ResponseRetrieveParamsStreaming,
    "GET /v1/responses/{response_id}/input_items": InputItemListParams,
    "POST /v1/conversations/{conversation_id}/items": ItemCreateParams,
    "GET /v1/conversations/{conversation_id}/items": ItemListParams,
    "GET /v1/conversations/{conversation_id}/items/{item_id}": ItemRetrieveParams,
    "GET /v1/containers": ContainerListParams,
    "GET /v1/containers/{container_id}/files": FileListParams,
}
"""OpenAI's types of the routes that have query parameters."""


@pytest.fixture(scope="module")
def document(stack: LiveStack) -> Json:
    """The whole description, including the host's routes."""
    found: Json = httpx.get(f"{stack.base_url}/openapi.json", timeout=60, trust_env=False, verify=False).json()
    return found


@pytest.fixture(scope="module")
def operations(document: Json) -> dict[str, Json]:
    """This package's operations, by method and path."""
    return {
        f"{method.upper()} {path}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if operation["responses"].get("default", {}).get("description") == "An error."
    }


def values(tree: Any, key: str) -> Iterator[Any]:
    """Yield all values of a key, at any depth."""
    if isinstance(tree, dict):
        yield from ([tree[key]] if key in tree else [])
        tree = list(tree.values())
    for each in tree if isinstance(tree, list) else ():
        yield from values(each, key)


def schema(operation: Json, status: str = "200", media: str = "application/json") -> Json:
    """Return the schema of an operation's answer."""
    found: Json = operation["responses"][status]["content"][media]["schema"]
    return found


def test_openapi_lists_every_route(operations: dict[str, Json]) -> None:
    table = features("Routes")
    assert operations.keys() == table.keys() - refused(table)


def test_unsupported_route_is_405_with_its_code(wire: Wire) -> None:
    for name, feature in features("Routes").items():
        if feature.state == "no":
            method, path = name.split()
            assert error_of(wire.http.request(method, path.removeprefix("/v1")), 405)["code"] == feature.code


def test_every_operation_has_schemas_summary_and_path_parameters(operations: dict[str, Json]) -> None:
    for name, operation in operations.items():
        assert set(operation["responses"]) == {"200", "default"}, name
        assert operation["summary"], name
        assert all(content["schema"] for content in operation["responses"]["200"]["content"].values()), name
        in_path = {each["name"] for each in operation.get("parameters", []) if each["in"] == "path"}
        assert in_path == {part[1:-1] for part in name.split("/") if part.startswith("{")}, name


def test_openapi_has_the_query_parameters_of_openais_types(operations: dict[str, Json]) -> None:
    for name, params in IN_QUERIES.items():
        in_query = {each["name"] for each in operations[name]["parameters"] if each["in"] == "query"}
        assert get_type_hints(params).keys() - {"items", "conversation_id"} <= in_query, name


def test_openapi_schemas_are_valid_without_references(operations: dict[str, Json]) -> None:
    for name, operation in operations.items():
        assert list(values(operation, "$ref")) == [], name
        for each in values(operation["responses"], "schema"):
            Draft202012Validator.check_schema(each)


def test_openapi_examples_match_their_schemas(operations: dict[str, Json]) -> None:
    sent = [operation["requestBody"]["content"] for operation in operations.values() if "requestBody" in operation]
    contents = [content["application/json"] for content in sent if "application/json" in content]
    assert contents
    for content in contents:
        Draft202012Validator(content["schema"]).validate(content["example"])
    example = operations["POST /v1/responses"]["requestBody"]["content"]["application/json"]["example"]
    assert parse_create(example).stream


@pytest.mark.parametrize("path", ["/responses", "/responses/compact", "/responses/input_tokens"])
def test_value_outside_the_openapi_schema_is_400(
    operations: dict[str, Json], wire: Wire, upstream: Upstream, path: str
) -> None:
    upstream.script(NAME, ANSWER)
    fields = operations[f"POST /v1{path}"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    for name, described in fields.items():
        takes = Draft202012Validator(described)
        values: list[Any] = [5, {}, "?", True]
        wrong = next(value for value in values if not takes.is_valid(value))
        answer = wire.http.post(path, json={"model": MODEL, "input": "Hi", name: wrong})
        assert error_of(answer, 400)["param"].startswith(name), name


def test_response_answers_match_the_openapi_schemas(
    operations: dict[str, Json], wire: Wire, upstream: Upstream, stack: LiveStack
) -> None:
    upstream.script(NAME, ANSWER)

    def check(operation: str, answer: httpx.Response, status: str = "200") -> Json:
        found: Json = answer.json()
        Draft202012Validator(schema(operations[operation], status)).validate(found)
        return found

    body = {"model": MODEL, "input": "Hi"}
    response = check("POST /v1/responses", wire.post(body))
    one = "/v1/responses/{response_id}"
    check(f"GET {one}", wire.get(f"/{response['id']}"))
    check(f"GET {one}/input_items", wire.get(f"/{response['id']}/input_items"))
    check("GET /v1/responses", wire.get("", limit=1))
    check(f"GET {one}", wire.get(f"/{response['id']}", include="nothing.known"), "default")
    check(f"GET {one}/input_items", wire.get(f"/{response['id']}/input_items", include="nothing.known"), "default")
    check("POST /v1/responses/input_tokens", wire.http.post("/responses/input_tokens", json=body))
    check("POST /v1/responses/compact", wire.http.post("/responses/compact", json=body))
    prompt = {"id": PromptsClient(stack).write("Say {{what}}.", "what"), "variables": {"what": "hello"}}
    check("POST /v1/responses", wire.post({"model": MODEL, "prompt": prompt}))
    check("POST /v1/responses", wire.post({"model": MODEL}), "default")
    check(f"POST {one}/cancel", wire.http.post(f"/responses/{response['id']}/cancel"), "default")
    check(f"DELETE {one}", wire.http.delete(f"/responses/{response['id']}"))


def test_container_answers_match_the_openapi_schemas(operations: dict[str, Json], wire: Wire) -> None:
    def check(operation: str, answer: httpx.Response) -> Json:
        found: Json = answer.json()
        Draft202012Validator(schema(operations[operation])).validate(found)
        return found

    one = "/v1/containers/{container_id}"
    created = check("POST /v1/containers", wire.http.post("/containers", json={"name": "notes"}))
    path = f"/containers/{created['id']}"
    check("GET /v1/containers", wire.http.get("/containers"))
    check(f"GET {one}", wire.http.get(path))
    put = check(f"POST {one}/files", wire.http.post(f"{path}/files", files={"file": ("a.txt", b"a")}))
    check(f"GET {one}/files", wire.http.get(f"{path}/files"))
    check(f"GET {one}/files/{{file_id}}", wire.http.get(f"{path}/files/{put['id']}"))
    check(f"DELETE {one}", wire.http.delete(path))
