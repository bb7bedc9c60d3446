"""The view of what runs now shows what was found out about models on a schedule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from llama_stack_responses.features.doctor.checks import CHECKS
from tests.support.browser import Browser
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.upstream import UpstreamProcess
from tests.support.variants import responses_config, variant
from tests.support.waiting import wait_until
from tests.support.wire import Wire

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def examined(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveStack]:
    """A stack that examines one of its models after its start."""

    def change(config: dict[str, Any]) -> None:
        responses_config(config)["doctor"] = {"at_start": True, "models": ["local/echo"]}

    folder = tmp_path_factory.mktemp("examined")
    env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url}
    with LiveStack(variant(STARTER, folder / "config.yaml", change), env, folder / "state", host=host) as live:
        yield live


def model_servers(wire: Wire) -> list[dict[str, Any]]:
    """Return the sections of the card of the model servers."""
    cards = wire.http.get("/ui/cards").json()["data"]
    return [each for card in cards if card["title"] == "Model servers" for each in card["sections"]]


def test_card_opens_the_checks_of_a_model(browser: Browser, examined: LiveStack) -> None:
    with Wire(examined) as wire:
        wait_until(lambda: "local/echo" in [each["title"] for each in model_servers(wire)])
    with browser.page(examined.base_url) as page:
        page.goto("/ui/live")
        shown = page.find(".feature-card[aria-label='Model servers'] summary", "local/echo")
        assert " work" in shown.inner_text()
        shown.click()
        page.find(".feature-card td", "a streamed answer")
        assert page.page.locator(".feature-card details[open] tbody tr").count() == len(CHECKS)
        assert page.axe() == []
        page.page.set_viewport_size({"width": 360, "height": 740})
        assert page.fits()
        widths = page.page.locator(".feature-card [open] :is(td, th)").evaluate_all(
            "all => all.map((one) => one.offsetWidth)"
        )
        assert min(widths) >= 60  # the table scrolls: no column of single characters
        page.check_quiet()
