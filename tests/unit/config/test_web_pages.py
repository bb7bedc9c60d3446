"""The demo checks host names and origins before anything is installed, as the settings do when the server starts."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from llama_stack_responses.config.web_pages import HostNames, Origins
from tests.support.stack import REPOSITORY


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module with the demo's checks of its environment."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "demo"))
    return import_module("environment")


def accepts(setting: Any, value: str) -> bool:
    try:
        TypeAdapter(setting).validate_python([value])
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize(
    "name",
    [
        *("*", "a", "Example.COM", "a_b-c.example.com", "*.example.com", "example.com.", "localhost", "10.0.0.1"),
        *(
            "",
            ".",
            "*.",
            "*a",
            "a.*",
            "a..b",
            ".a",
            "a b",
            "a:80",
            "http://a",
            "a/b",
            "[::1]",
            "é.example",
            "**",
            "a/",
            "a..",
        ),
    ],
)
def test_demo_accepts_host_name_as_setting_does(demo: Any, name: str) -> None:
    assert bool(re.fullmatch(demo.HOST, name)) == accepts(HostNames, name)


@pytest.mark.parametrize(
    "origin",
    [
        *("https://a.example", "HTTP://A:8080", "https://a.example/", "moz-extension://1f", "http://[::1]:80"),
        *("", "a.example", "https://", "https://a/b", "https://a?b", "https://a#b", "https://u@a", "https://a b", "*"),
        *("1http://a", "://a", "https:/a", "https://a//b", "https://a//"),
    ],
)
def test_demo_accepts_origin_as_setting_does(demo: Any, origin: str) -> None:
    assert bool(re.fullmatch(demo.ORIGIN, origin)) == accepts(Origins, origin)
