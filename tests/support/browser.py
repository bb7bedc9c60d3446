"""A real browser for tests of the built-in page: Chromium from an npm package, driven by playwright.

    with Browser() as browser, browser.page(stack.base_url) as page:
        page.goto("/ui")
        page.check_quiet()

The package carries Chromium compressed, with the libraries and fonts that a bare machine lacks.
"""

import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

from playwright.sync_api import Browser as ChromiumBrowser
from playwright.sync_api import (
    BrowserContext,
    ConsoleMessage,
    Dialog,
    Error,
    Locator,
    Page,
    Playwright,
    sync_playwright,
)

from tests.support.clients import FOLDER, installed

MODULES: Final = FOLDER / "browser" / "node_modules"
LAUNCHES: Final = 3  # Chromium sometimes crashes while it starts
SECONDS: Final = 60.0  # far more than a wait takes on an idle machine
EVIL: Final = "evil.test"
"""A public name; its owner lets it resolve to this machine."""
FLAGS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    f"--host-resolver-rules=MAP {EVIL} 127.0.0.1",
)
_INFLATE: Final = """
const [, from, to] = process.argv;
const { createReadStream, createWriteStream } = require("fs");
require("stream").pipeline(createReadStream(from), require("zlib").createBrotliDecompress(), createWriteStream(to), (e) => { if (e) throw e; });
"""

_END_TRANSITIONS: Final = """() => {
  for (const each of document.getAnimations()) if (each instanceof CSSTransition) each.finish()
}"""
_AXE: Final = "() => axe.run(document, {resultTypes: ['violations'], rules: {'target-size': {enabled: true}}})"

type Json = dict[str, Any]


def chromium() -> Path:
    """Return the folder with Chromium's binary, which is unpacked once."""
    installed("browser")
    folder = FOLDER / "browser" / "chromium"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=FOLDER / "browser") as name:
            path = Path(name) / "chromium"
            path.mkdir()
            _unpack(MODULES / "@sparticuz" / "chromium" / "bin", path)
            try:
                path.rename(folder)
            except OSError:  # another process was first
                assert folder.exists()
    return folder


def _unpack(packed: Path, to: Path) -> None:
    node = installed("node") / "bin" / "node"
    for name in ("chromium", "al2023.tar", "fonts.tar"):
        subprocess.run([node, "-e", _INFLATE, packed / f"{name}.br", to / name], check=True, timeout=300)
    for name in ("al2023.tar", "fonts.tar"):
        with tarfile.open(to / name) as archive:
            archive.extractall(to, filter="data")
    (to / "chromium").chmod(0o755)


def environment(folder: Path) -> dict[str, str]:
    """Return the environment in which Chromium finds its libraries, and fonts where the machine has none."""
    env = {name: value for name, value in os.environ.items() if name in {"HOME", "PATH", "TMPDIR"}}
    env |= {"LD_LIBRARY_PATH": str(folder / "lib"), "LANG": "en_US.UTF-8"}
    if not Path("/etc/fonts/fonts.conf").exists():
        env["FONTCONFIG_PATH"] = str(folder)
    return env


def _launched(playwright: Playwright, folder: Path) -> ChromiumBrowser:
    def launch() -> ChromiumBrowser:
        return playwright.chromium.launch(
            executable_path=folder / "chromium", args=FLAGS, env=dict(environment(folder))
        )

    for _ in range(LAUNCHES - 1):
        with suppress(Error):
            return launch()
    return launch()


class BrowserPage:
    """A page of the browser, and what went wrong on it.

    Attributes:
        page: playwright's page.
        root: the server's URL.
        problems: errors of scripts, refusals of the content security policy, failed loads, and opened dialogs.
        requests: method and path of each request to the server, in order.
        foreign: URLs of other hosts that the page requested.
    """

    def __init__(self, page: Page, root: str) -> None:
        self.page = page
        self.root = root
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.foreign: list[str] = []
        page.set_default_timeout(SECONDS * 1000)
        page.on("console", self._record_console)
        page.on("pageerror", lambda error: self.problems.append(f"script: {error}"))
        page.on("dialog", self._record_dialog)
        page.on("request", lambda request: self._record_request(request.method, request.url))

    def _record_console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.problems.append(f"{message.type}: {message.text}")

    def _record_dialog(self, dialog: Dialog) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _record_request(self, method: str, url: str) -> None:
        if url.startswith(self.root):
            self.requests.append(f"{method} {url.removeprefix(self.root)}")
        elif not url.startswith(("data:", "blob:")):
            self.foreign.append(url)

    def goto(self, path: str) -> None:
        """Open a view and wait until its heading is there."""
        self.page.goto(self.root + path)
        self.page.locator("main h1, dialog").first.wait_for(state="attached")

    def find(self, selector: str, text: str | None = None) -> Locator:
        """Wait for the first visible element with a selector, and a text if given; return it."""
        found = self.page.locator(selector, has_text=text).first if text else self.page.locator(selector).first
        found.wait_for()
        return found

    def gone(self, selector: str, text: str | None = None) -> None:
        """Wait until no such element is visible."""
        self.page.locator(selector, has_text=text).first.wait_for(state="hidden")

    def until(self, expression: str, argument: Any = None) -> Any:
        """Wait until a JavaScript function returns something true, and return that."""
        return self.page.wait_for_function(expression, arg=argument).json_value()

    def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        for key in keys:
            self.page.keyboard.press(key)

    @property
    def path(self) -> str:
        """The address of the view, without the server."""
        return self.page.url.removeprefix(self.root)

    def fits(self) -> bool:
        """Return whether the view is no wider than the screen."""
        size = self.page.viewport_size
        assert size
        return bool(self.page.evaluate("() => document.documentElement.scrollWidth") <= size["width"])

    def hide(self, *, hidden: bool = True) -> None:
        """Tell the page that its tab is hidden, or shown again."""
        self.page.evaluate(
            """hidden => {
              Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
              document.dispatchEvent(new Event("visibilitychange"));
            }""",
            hidden,
        )

    def check_quiet(self) -> None:
        """Check that nothing went wrong so far, and that no other host got a request."""
        assert not self.problems, self.problems
        assert not self.foreign, self.foreign

    def axe(self) -> list[str]:
        """Return what axe finds at least moderate on the page, each with the first element."""
        # Evaluated by the debugger, which the page's policy does not bind.
        self.page.evaluate((MODULES / "axe-core" / "axe.min.js").read_text())
        # Otherwise what the bar at the top covers in part would count as too small.
        self.page.evaluate("() => scrollTo(0, 0)")
        # Between two colour schemes, a background would have a colour of neither.
        self.page.evaluate(_END_TRANSITIONS)
        found: Json = self.page.evaluate(_AXE)
        return [
            f"{one['id']}: {one['nodes'][0]['html'][:300]} {one['nodes'][0]['failureSummary'][:300]}"
            for one in found["violations"]
            if one["impact"] in {"moderate", "serious", "critical"}
        ]


class Browser:
    """Chromium, for a `with` block."""

    def __enter__(self) -> Self:
        """Start it."""
        folder = chromium()
        with ExitStack() as started:
            playwright = started.enter_context(sync_playwright())
            self._browser = _launched(playwright, folder)
            started.callback(self._browser.close)
            # If the launch fails, playwright's event loop ends: otherwise all async tests of this process would fail.
            self._open = started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self._open.close()

    @contextmanager
    def page(self, root: str, **options: Any) -> Iterator[BrowserPage]:
        """Open a page in a context of its own; `options` are those of playwright's `new_context`."""
        settings: Json = {"viewport": {"width": 1280, "height": 800}, "locale": "en-GB", **options}
        context: BrowserContext = self._browser.new_context(**settings)
        try:
            yield BrowserPage(context.new_page(), root)
        finally:
            context.close()
