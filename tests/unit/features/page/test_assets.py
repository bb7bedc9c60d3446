"""The files of the page: their addresses, and what a browser loads before it shows a list."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from llama_stack_responses.features.page.assets import Assets
from llama_stack_responses.features.page.files import file_routes

FIRST_VIEW_BYTES = 50_000
"""Bytes of a second on a line of 400 kb/s."""


def read_assets() -> Assets:
    assets = Assets({})
    assets.read()
    return assets


@pytest.fixture(scope="module")
def client() -> TestClient:
    app = FastAPI()
    for route in file_routes(Assets({})):
        app.add_api_route(route.path, route.answer)
    return TestClient(app)


def index(client: TestClient) -> str:
    return client.get("/ui").text


def test_index_names_files_by_the_hash_of_all(client: TestClient) -> None:
    names = re.findall(r'(?:src|href)="(/ui/[^"]*\.\w+)"', index(client))
    assert len(names) > 8
    [folder] = {re.match("/ui/v-[0-9a-f]{16}/", name)[0] for name in names}  # type: ignore[index]
    for name in names:
        answer = client.get(name)
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "public, max-age=31536000, immutable")
    assert client.get(f"{folder}features/usage/usage.js").headers["cache-control"].endswith("immutable")


def test_files_are_read_once_the_page_is_opened(client: TestClient) -> None:
    assets = Assets({})
    assert not assets.is_read
    app = FastAPI()
    for route in file_routes(assets):
        app.add_api_route(route.path, route.answer)
    assert TestClient(app).get("/ui").text == index(client)
    assert assets.is_read


def test_changing_files_are_read_at_each_request(tmp_path: Path) -> None:
    app = FastAPI()
    for route in file_routes(Assets({"LLAMA_STACK_RESPONSES_UI_DIR": str(tmp_path)})):
        app.add_api_route(route.path, route.answer)
    client = TestClient(app)
    for words in ("one", "two"):
        (tmp_path / "words.txt").write_text(words)
        assert client.get("/ui/words.txt").text == words


def test_files_without_the_current_hash_are_asked_for_again(client: TestClient) -> None:
    for path in ("/ui", "/ui/app.js", "/ui/v-0123456789abcdef/app.js", "/ui/responses/resp_1"):
        assert client.get(path).headers["cache-control"] == "no-cache"
    known = client.get("/ui/app.js").headers["etag"]
    assert client.get("/ui/app.js", headers={"if-none-match": known}).status_code == 304
    plain = client.get("/ui/app.js", headers={"accept-encoding": "identity", "if-none-match": known})
    assert plain.status_code == 200


@pytest.mark.parametrize(
    ("accepted", "is_compressed"),
    [("gzip", True), ("br, gzip;q=0.5", True), ("*", True), ("gzip;q=0", False), ("br", False), ("", False)],
)
def test_files_are_compressed_for_those_who_take_it(client: TestClient, accepted: str, is_compressed: bool) -> None:
    answer = client.get("/ui/app.js", headers={"accept-encoding": accepted})
    assert (answer.headers.get("content-encoding") == "gzip") == is_compressed
    assert answer.headers["vary"] == "accept-encoding"
    asset = read_assets().find("app.js")
    assert asset
    assert answer.content == asset.content  # the client has decompressed it
    assert asset.compressed is not None
    assert gzip.decompress(asset.compressed) == asset.content


def test_modules_of_the_first_view_are_loaded_at_once_and_are_small(client: TestClient) -> None:
    page = index(client)
    preloads = set(re.findall(r'<link rel="modulepreload" href="[^"]*/([\w.]+)">', page))
    assert {"list.js", "dom.js", "api.js", "virtual.js"} <= preloads
    assert "playground.js" not in preloads
    assets = read_assets()
    found = [assets.find(name) for name in (*preloads, "app.js", "style.css", "index.html")]
    assert sum(len(each.compressed or each.content) for each in found if each) < FIRST_VIEW_BYTES
