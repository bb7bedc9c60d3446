"""docs/reference/public-api.md lists what the modules offer in `__all__`, and a package of others needs no more."""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.setting_values import WrongConfiguration
from llama_stack_responses.host.keyvalue import backend
from llama_stack_responses.store.factory import open_records
from llama_stack_responses.store.records import Conflict, Delete, Empty, Ensure, Put, VersionIs
from tests.support.stack import REPOSITORY
from tests.support.third_party import THIRD_PARTY

PAGE: Final = REPOSITORY / "docs" / "reference" / "public-api.md"
TABLE: Final = {
    module: re.findall(r"`(\w+)`", names)
    for module, names in re.findall(r"^\| `(llama_stack_responses[\w.]*)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
}


@pytest.mark.parametrize("module", TABLE)
def test_page_has_the_names_of_module(module: str) -> None:
    offered: Any = import_module(module)
    assert sorted(TABLE[module]) == sorted(offered.__all__)
    assert all(hasattr(offered, name) for name in offered.__all__)


def test_unknown_name_of_the_package_is_an_error() -> None:
    with pytest.raises(ImportError):
        exec("from llama_stack_responses import Nothing")


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """Yield what a module imports of this package, as `(module, name)`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.ImportFrom)
            and not node.level
            and (node.module or "").startswith("llama_stack_responses")
        ):
            yield from ((str(node.module), each.name) for each in node.names)


def test_package_of_others_imports_only_public_names() -> None:
    used = {each for path in THIRD_PARTY.rglob("*.py") for each in imported(path)}
    assert used
    assert {(module, name) for module, name in used if name not in TABLE.get(module, ())} == set()


async def test_store_of_others_keeps_the_promises_of_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(THIRD_PARTY))
    config = ResponsesConfig.model_validate({"store": {"type": "other", "name": "acme"}})
    records = open_records(config.store, backend)
    await records.commit([Put("a/1", b"one"), Put("a/2", b"two"), Ensure("a/1", b"other")], [Empty("a/")])
    with pytest.raises(Conflict):
        await records.commit([Delete("a/1")], [VersionIs("a/1", 2)])
    await records.commit([Put("a/1", b"new"), Delete("a/2")], [VersionIs("a/1", 1)])
    assert [(key, each.value, each.version) for key, each in await records.range("a/", "a0", limit=9)] == [
        ("a/1", b"new", 2)
    ]
    await records.close()


@pytest.mark.parametrize(
    ("store", "why"),
    [
        ({"type": "other", "name": "nobody"}, "no installed package has a store 'nobody'; .* are: acme"),
        ({"type": "other", "name": "acme", "settings": {"rows": 1}}, "acme has no setting rows"),
    ],
)
def test_wrong_store_of_others_is_an_error(store: Any, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(THIRD_PARTY))
    with pytest.raises(WrongConfiguration, match=why):
        open_records(ResponsesConfig.model_validate({"store": store}).store, backend)
