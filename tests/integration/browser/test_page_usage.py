"""The view of what was used, which the feature that counts it brings to the page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Literal

import pytest

from tests.support.browser import Browser
from tests.support.stack import LiveStack
from tests.support.upstream import Upstream, reply, text
from tests.support.wire import Wire

pytestmark = pytest.mark.live

TOKENS = {"prompt_tokens": 700, "completion_tokens": 30, "total_tokens": 730}
IN_BAR = """one => {
  const [own, bar] = [one, one.parentElement].map((each) => each.getBoundingClientRect());
  return bar.left <= own.left && own.right <= bar.right;
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_usage_is_drawn_grouped_saved_and_leads_to_the_list(
    browser: Browser, page_stack: LiveStack, upstream: Upstream, theme: Literal["light", "dark"]
) -> None:
    model, team = f"metered-{theme}", f" =<img src=x onerror=window.harm=1> {theme}"
    upstream.script(model, reply(text("Counted."), usage=TOKENS))
    with browser.page(page_stack.base_url, color_scheme=theme) as page, Wire(page_stack) as wire:
        created = wire.create(model=f"local/{model}", input="What is used?", metadata={"team": team})
        page.goto("/ui")
        page.find("#nav a", "Usage")
        page.press("g", "u")
        page.find("[data-chart=Requests] .value")
        assert page.find("#nav a[aria-current]").inner_text() == "Usage"
        for chart in ("Tokens", "Duration", "Cost"):
            assert re.search("[1-9]", page.find(f"[data-chart='{chart}'] .value").inner_text())
        page.find("select[name=by]").select_option("metadata")
        page.find(".usage-table th a", team.strip())
        assert page.page.evaluate("() => window.harm") is None
        assert page.axe() == []
        with page.page.expect_download() as saved:
            page.find("button", "CSV").click()
        assert ",\"' =<img" in Path(saved.value.path()).read_text(), "no spreadsheet computes it"
        page.find("select[name=by]").select_option("model")
        row = page.find(".usage-table tbody tr", model)
        assert [cell.inner_text() for cell in row.locator("td").all()][:4] == ["1", "700", "0", "30"]
        assert page.path == "/ui/usage?span=day&by=model"
        with page.page.expect_download() as saved:
            page.find("button", "CSV").click()
        lines = Path(saved.value.path()).read_text().splitlines()
        assert lines[0].startswith('"start","model","requests"')
        assert any(f'"local/{model}",1,700' in line for line in lines)
        with page.page.expect_download() as saved:
            page.find("button", "JSON").click()
        [of_model] = [
            each for each in json.loads(Path(saved.value.path()).read_text()) if each["model"].endswith(model)
        ]
        assert of_model["duration_p95_ms"] >= of_model["duration_p50_ms"] > 0
        assert page.axe() == []
        page.page.set_viewport_size({"width": 360, "height": 740})
        assert page.fits()
        row.locator("th a").focus()
        page.press("Enter")
        page.find(f".list-row[data-id={created['id']}]")
        assert page.page.locator(".list-row").count() == 1
        for span, bars in (("hour", 60), ("month", 31)):
            page.goto(f"/ui/usage?span={span}&by=model")
            page.find(".usage-table tbody tr", model)
            assert page.page.locator("[data-chart=Requests] svg g").count() == bars
            assert page.find("#nav a[aria-current]", "Usage").evaluate(IN_BAR)
        page.page.locator("[data-chart=Requests] svg g").last.click()
        page.find(f".list-row[data-id={created['id']}]")
        assert "from=" in page.path
        page.page.go_back()
        page.find("[data-chart=Requests] h2 a").focus()
        page.press("Enter")
        page.find(f".list-row[data-id={created['id']}]")
        page.check_quiet()
