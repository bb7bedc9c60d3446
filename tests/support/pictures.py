"""Takes the pictures of the built-in page that the documentation shows.

    python -m tests.support.pictures [--out docs/images] [--only NAME ...]

It starts a stack with responses of every kind and drives Chromium. Look at each picture before it is committed.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import openai

from tests.support.auth import auth_server
from tests.support.browser import Browser, BrowserPage
from tests.support.script import reply, text
from tests.support.showcase import pieces
from tests.support.stack import REPOSITORY, STARTER, LiveStack
from tests.support.story import StoryStack, furnished
from tests.support.upstream import UpstreamProcess
from tests.support.variants import responses_config, variant
from tests.support.waiting import wait_until
from tests.support.web import Answer, Web
from tests.support.wire import Wire

HERON: Final = "The heron stands where the river slows, one leg folded, and waits for the light to change. "
STRIKE: Final = """**Herons** wait, and then they are fast: a strike of 0.4 m in \\(t = 0.1\\) s has

$$v = \\frac{s}{t} = 4\\ \\text{m/s}$$

```python
def speed(metres: float, seconds: float) -> float:
    return metres / seconds  # in m/s
```
"""
ASKED: Final = (
    ("ada", "Which of our suppliers deliver on Saturdays?", "Two of them do: Berg and Lindqvist."),
    ("bob", "Summarise the minutes of Tuesday.", "The budget was agreed. Chidi writes to the city."),
    ("chidi", "Translate the letter to the city into Norwegian.", "Kjære kommune, vi takker for svaret."),
    ("bob", "Is the lighthouse open in November?", "It is open on Sundays, from eleven to three."),
    ("olga", "Which model answers fastest?", "Today it is the small one."),
    ("chidi", "Draft a reply to the courier.", "Thank you for the parcel. Its box was open."),
)
"""What users asked, and the answers."""
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
        of_operator: whether it is of the stack with several users, one of whom is an operator.
    """

    address: str
    scheme: str
    size: tuple[int, int] = _DESK
    prepare: Callable[[BrowserPage, StoryStack], None] | None = None
    of_operator: bool = False


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


def _batches(page: BrowserPage, found: StoryStack) -> None:
    """Run a batch with two lines that fail, and one that is under way."""
    found.upstream.script("qwen3-4b", reply(text("It is a bill.")))
    found.upstream.script("qwen3-30b", [reply(text("It is a letter."))] * 3 + [reply(text("It "), text("is"), hold=1)])
    _batch(found, "Sort the mail", ["local/qwen3-4b"] * 22 + ["nobody/here"] * 2)
    _batch(found, "Sort the archive", ["local/qwen3-30b"] * 9)
    page.find(".batch-counts", "22 completed, 2 failed, of 24 lines")
    page.find(".batch-counts", "of 9 lines")
    page.page.locator(".batch", has_text="of 24 lines").locator("button", has_text="Failed lines").click()
    page.find("dialog tbody tr")


def _batch(found: StoryStack, job: str, models: Sequence[str]) -> None:
    with openai.OpenAI(base_url=f"{found.stack.base_url}/v1", api_key="none") as client:
        body = {"input": "What is it?"}
        lines = [
            {"custom_id": f"letter-{number}", "method": "POST", "url": "/v1/responses", "body": body | {"model": model}}
            for number, model in enumerate(models, 1)
        ]
        content = "\n".join(map(json.dumps, lines)).encode()
        file = client.files.create(file=("letters.jsonl", io.BytesIO(content)), purpose="batch")
        client.batches.create(
            input_file_id=file.id, endpoint="/v1/responses", completion_window="24h", metadata={"job": job}
        )


def _webhooks(page: BrowserPage, found: StoryStack) -> None:
    """Have the ends of background responses sent to an endpoint that refuses the last of them."""
    found.upstream.script("qwen3-4b", reply(text("It is a bill.")))
    answers = iter([Answer(b"Thank you")] * 4)
    with Web() as web, openai.OpenAI(base_url=f"{found.stack.base_url}/v1", api_key="none") as client:
        web.answer_all = lambda _: next(answers, Answer(b"We are closed on Sundays", 503))
        types: Any = ["response.completed", "response.failed"]
        client.webhooks.create(name="Front desk", url=web.url("/hooks/responses"), event_types=types)
        for number in range(1, 6):
            client.responses.create(model="local/qwen3-4b", input=f"What is letter {number}?", background=True)
            wait_until(partial(_seen, web, number))
        page.page.reload()
        page.find(".endpoint summary", "Front desk").click()
        page.find(".endpoint tbody td", "503 We are closed")


def _seen(web: Web, requests: int) -> bool:
    return len(web.seen) >= requests


def _preset(page: BrowserPage, found: StoryStack) -> None:
    """Keep instructions and settings as a preset, in two versions."""
    _ask(page, found)
    instructions = page.page.get_by_label("Instructions")
    for words in ("You are a biologist.", "You are a biologist. Give formulas, and the units of all numbers."):
        instructions.fill(words)
        page.find(".presets").get_by_role("button", name="Save").click()
        page.find("dialog input[name=preset_name]").fill("Biologist")
        page.press("Enter")
        page.find(".toast", "Saved as version")
    page.page.reload()
    page.find(".presets select[name=preset]").select_option(label="Biologist")
    page.find(".toast", "Preset Biologist")
    page.gone(".toast")


def _sign_in(page: BrowserPage) -> None:
    """Sign in as the operator."""
    page.find("dialog input[name=token]").fill("olga")
    page.press("Enter")
    page.until("() => document.documentElement.dataset.owner")
    page.problems.clear()  # the refusals of the requests before


def _owned(page: BrowserPage, found: StoryStack) -> None:
    page.find(".row-owner", "bob")


def _audited(page: BrowserPage, found: StoryStack) -> None:
    """Read and delete responses as the operator, and be refused as another user."""
    with Wire(found.stack, token="bob") as bob, Wire(found.stack, token="olga") as olga:
        bob.http.headers["user-agent"] = olga.http.headers["user-agent"] = "curl/8.5.0"
        rows = olga.http.get("/admin/responses?owner=bob").json()["data"]
        olga.http.get(f"/admin/responses/{rows[0]['id']}").raise_for_status()
        bob.http.get(f"/admin/responses/{rows[0]['id']}")
        olga.http.get(f"/admin/responses/{rows[0]['id']}/input_items").raise_for_status()
        olga.http.post(
            f"/admin/scores/{rows[0]['id']}", json={"score": 0, "note": "It names no date."}
        ).raise_for_status()
        bob.http.get("/admin/conversations")
        olga.http.get("/admin/responses").raise_for_status()
    page.page.reload()
    page.find(".audit-entry", "Refused")


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
    "ui-usage-light": Picture("/ui/usage?span=hour&by=model", "light"),
    "ui-batches-dark": Picture("/ui/batches", "dark", prepare=_batches),
    "ui-webhooks-light": Picture("/ui/webhooks", "light", prepare=_webhooks),
    "ui-presets-dark": Picture("/ui/playground", "dark", prepare=_preset),
    "ui-owners-light": Picture("/ui?owners=all", "light", prepare=_owned, of_operator=True),
    "ui-audit-dark": Picture("/ui/admin", "dark", prepare=_audited, of_operator=True),
}


@contextmanager
def operated(folder: Path) -> Iterator[StoryStack]:
    """A stack with an operator, and with responses of some users."""

    def change(config: dict[str, Any]) -> None:
        config["server"]["auth"] = {"provider_config": {"type": "custom", "endpoint": url}}
        responses_config(config).update(roles={"operator": {"roles": ["admin"]}}, usage={})

    users: dict[str, Any] = {
        name: {"principal": name, "attributes": {"roles": ["admin" if name == "olga" else "user"]}}
        for name in ("olga", "ada", "bob", "chidi")
    }
    with auth_server(users) as url, UpstreamProcess(folder / "upstream.log") as upstream:
        env = {"INFERENCE_URL": upstream.client.base_url}
        with LiveStack(variant(STARTER, folder / "config.yaml", change), env, folder / "state") as stack:
            for number, (user, question, answer) in enumerate(ASKED):
                model = ("qwen3-4b", "qwen3-30b")[number % 2]
                upstream.client.script(model, reply(text(answer)))
                with Wire(stack, token=user) as wire:
                    wire.post({"model": f"local/{model}", "input": question})
            yield StoryStack(stack, upstream.client, {})


def take(browser: Browser, found: StoryStack, picture: Picture, out: Path) -> None:
    """Take one picture; it fails if the page has a problem."""
    width, height = picture.size
    options = {"viewport": {"width": width, "height": height}, "color_scheme": picture.scheme}
    with browser.page(found.stack.base_url, **options, has_touch=picture.size == _PHONE) as page:
        page.goto(picture.address.format(**found.ids))
        if picture.of_operator:
            _sign_in(page)
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
    with Browser() as browser:
        for start, of_operator in ((furnished, False), (operated, True)):
            names = [name for name in options.only if PICTURES[name].of_operator == of_operator]
            if not names:
                continue
            with tempfile.TemporaryDirectory() as folder, start(Path(folder)) as found:
                for name in names:
                    take(browser, found, PICTURES[name], options.out / f"{name}.png")
                    print(name, flush=True)


if __name__ == "__main__":
    main()
