"""Takes the pictures of the built-in page that the documentation shows.

    python -m tests.support.pictures [--out docs/images] [--only NAME ...]

It starts a stack with responses of every kind and drives Chromium. Look at each picture before it is committed.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.browser import Browser, BrowserPage
from tests.support.script import reply, text
from tests.support.showcase import pieces
from tests.support.stack import REPOSITORY
from tests.support.story import StoryStack, furnished
from tests.support.wire import Wire

HERON: Final = "The heron stands where the river slows, one leg folded, and waits for the light to change. "
STRIKE: Final = """**Herons** wait, and then they are fast: a strike of 0.4 m in \\(t = 0.1\\) s has

$$v = \\frac{s}{t} = 4\\ \\text{m/s}$$

```python
def speed(metres: float, seconds: float) -> float:
    return metres / seconds  # in m/s
```
"""
SETTLED: Final = "() => !/Reading…|Connecting/.test(document.querySelector('main').innerText)"
_DESK: Final = (1280, 800)
_PHONE: Final = (390, 844)


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of a view.

    Attributes:
        address: of the view, with ids by their names.
        scheme: `light` or `dark`.
        size: width and height of the window.
        prepare: what is done in the view first.
    """

    address: str
    scheme: str
    size: tuple[int, int] = _DESK
    prepare: Callable[[BrowserPage, StoryStack], None] | None = None


def _played(page: BrowserPage, found: StoryStack) -> None:
    """Play the replay until the answer is being written."""
    for _ in range(100):
        page.press("ArrowRight")
        if page.page.locator(".growing .message").count():
            break
    page.press(*["ArrowRight"] * 14)


def _opened(page: BrowserPage, found: StoryStack) -> None:
    page.find(".compaction summary").click()
    page.page.mouse.move(0, 0)


def _searched(page: BrowserPage, found: StoryStack) -> None:
    for _ in range(60):
        page.until(SETTLED)
        if not page.page.locator(".rows-tail", has_text="The index of words is being made").count():
            break
        page.page.wait_for_timeout(1000)
        page.page.reload()
        page.find(".rows-tail", "all that there are")
    page.find(".snippet mark")
    page.press("/")


def _busy(page: BrowserPage, found: StoryStack) -> None:
    """Let responses run, and others end, for some seconds."""
    long = reply(text(*pieces(HERON * 40)), interval=0.2)
    found.upstream.script("qwen3-30b", long)
    found.upstream.script("qwen3-4b", reply(text(*pieces("Yes: there are 17 of them. " * 3)), delay=0.12))
    with Wire(found.stack) as wire:
        for question in ("Describe the heron.", "Describe the river at night."):
            wire.post({"model": "local/qwen3-30b", "input": question, "background": True})
        for number in range(24):
            wire.create(model="local/qwen3-4b", input=f"How many herons are in picture {number}?")
            page.page.wait_for_timeout(300 + 900 * (number % 4 == 0))


def _ask(page: BrowserPage, found: StoryStack) -> None:
    """Ask in the playground, have it answered again, and wait for the answer."""
    found.upstream.script("qwen3-30b", [reply(text("**Herons** are fast.")), reply(text(STRIKE))])
    page.until("() => document.querySelector('select[name=model]')?.options.length > 0")
    page.page.evaluate(
        "name => { const field = document.querySelector('select[name=model]');"
        " field.append(new Option(name, name)); field.value = name; field.dispatchEvent(new Event('change')) }",
        "local/qwen3-30b",
    )
    page.page.locator("textarea[name=input]").fill("How fast does a heron strike?")
    page.press("Control+Enter")
    page.find(".message[data-role=assistant] .md")
    page.find("button", "Regenerate").click()
    page.find(".branches", "2 of 2")
    page.find(".message[data-role=assistant] math")


def _scored(page: BrowserPage, found: StoryStack) -> None:
    """Score the response as bad, and write why."""
    page.find(".scoring")
    page.press("-")
    page.find(".scoring [aria-pressed=true]", "Bad")
    page.press("n")
    page.page.keyboard.insert_text("The forecast was not asked for again after the call had failed.")
    page.press("Tab", "Enter")
    page.gone(".scoring button", "Save the note")


def _shared(page: BrowserPage, found: StoryStack) -> None:
    """Make a link to the response."""
    page.find(".button.share").click()
    page.find("dialog button", "Make a link").click()
    page.find("dialog .share-link input")


PICTURES: Final = {
    "ui-list-light": Picture("/ui", "light"),
    "ui-list-dark": Picture("/ui", "dark"),
    "ui-response-light": Picture("/ui/responses/{trip}", "light"),
    "ui-response-dark": Picture("/ui/responses/{trip}", "dark"),
    "ui-response-phone": Picture("/ui/responses/{trip}", "light", _PHONE),
    "ui-chain-dark": Picture("/ui/chain/{darker}", "dark"),
    "ui-compaction-light": Picture("/ui/chain/{compacted}", "light", prepare=_opened),
    "ui-replay-light": Picture("/ui/responses/{trip}/replay", "light", prepare=_played),
    "ui-compare-dark": Picture("/ui/compare?a={gulls}&b={darker}", "dark"),
    "ui-playground-light": Picture("/ui/playground", "light", prepare=_ask),
    "ui-playground-phone": Picture("/ui/playground", "dark", _PHONE, _ask),
    "ui-search-light": Picture("/ui?text=weather+after%3A30d", "light", prepare=_searched),
    "ui-sessions-dark": Picture("/ui/sessions", "dark"),
    "ui-score-light": Picture("/ui/responses/{trip}", "light", prepare=_scored),
    "ui-share-dark": Picture("/ui/responses/{trip}", "dark", prepare=_shared),
    "ui-live-dark": Picture("/ui/live", "dark", prepare=_busy),
}


def take(browser: Browser, found: StoryStack, picture: Picture, out: Path) -> None:
    """Take one picture; it fails if the page has a problem."""
    width, height = picture.size
    options = {"viewport": {"width": width, "height": height}, "color_scheme": picture.scheme}
    with browser.page(found.stack.base_url, **options, has_touch=picture.size == _PHONE) as page:
        page.goto(picture.address.format(**found.ids))
        page.until(SETTLED)
        if picture.prepare:
            picture.prepare(page, found)
        page.page.wait_for_timeout(500)
        page.page.screenshot(path=out)
        page.check_quiet()


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs" / "images")
    parser.add_argument("--only", nargs="*", choices=PICTURES, default=list(PICTURES))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, furnished(Path(folder)) as found, Browser() as browser:
        for name in options.only:
            take(browser, found, PICTURES[name], options.out / f"{name}.png")
            print(name, flush=True)


if __name__ == "__main__":
    main()
