"""The built-in page for everyone, in a real browser: accessibility, narrow windows, sign-in, hostile content, size."""

import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Route

from tests.support.auth import auth_server
from tests.support.browser import Browser, BrowserPage
from tests.support.mcp_server import McpServers
from tests.support.showcase import Showcase
from tests.support.stack import REPOSITORY, STARTER, Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess, reasoning, reply, text, tool_call
from tests.support.variants import variant
from tests.support.wire import Wire

pytestmark = [pytest.mark.live, pytest.mark.both_hosts]

STATIC = REPOSITORY / "llama_stack_responses" / "features" / "page" / "static"
VIEWS = {
    "list": "/ui",
    "nothing": "/ui?text=nothing-has-these-words",
    "response": "/ui/responses/{trip}",
    "failed": "/ui/responses/{broken}",
    "picture": "/ui/responses/{picture}",
    "chain": "/ui/chain/{darker}",
    "conversation": "/ui/conversations/{conversation}",
    "replay": "/ui/responses/{trip}/replay",
    "compare": "/ui/compare?a={root}&b={gulls}",
    "pick": "/ui/compare?a={root}",
    "nothing to compare": "/ui/compare",
    "live": "/ui/live",
    "playground": "/ui/playground",
    "unknown": "/ui/no-such-view",
}
USERS: dict[str, Any] = {
    f"token-of-{name}": {"principal": name, "attributes": {"teams": [name]}, "tenant": "north"}
    for name in ("ada", "bob")
} | {"token-of-carol": {"principal": "carol", "attributes": {"teams": ["ada"]}, "tenant": "north"}}
POLICY: list[dict[str, Any]] = [
    {"permit": {"actions": ["create"]}},
    *(
        {"permit": {"actions": ["read", "update", "delete"]}, "when": condition}
        for condition in ("user is owner", "user in owners teams", "resource is unowned")
    ),
]
"""Carol reads what her team's ada makes."""
SETTLED = "() => !/Reading…|Connecting/.test(document.querySelector('main').innerText)"
HOSTILE = (
    '<script>window.harm = 1</script><img src=x onerror="window.harm = 2"><svg onload="window.harm = 3"></svg>'
    '<iframe src="javascript:window.parent.harm = 4"></iframe><style>body { display: none }</style>'
    '<a href="javascript:window.harm = 5" id="main">link</a> [click](javascript:window.harm=6) '
    "[data](data:text/html,<script>window.harm=7</script>) ![image](https://tracker.example/pixel.png) "
    '<form action="https://evil.example"><button>go</button></form> <ui-list></ui-list> '
    "[ref][bad] <javascript:window.harm=13> [enc](jav&#x61;script:window.harm=14) [up](JaVaScRiPt:window.harm=15) "
    "[svg](data:image/svg+xml;base64,PHN2ZyBvbmxvYWQ9Imhhcm09MTYiLz4=) [rel](/ui/style.css) [vb](vbscript:harm=17)\n\n"
    "[bad]: javascript:window.harm=18\n\n```html\n<img src=x onerror=window.harm=19>\n```\n\n"
    '| <b onmouseover="window.harm=20">a</b> |\n|---|\n| ![t](https://tracker.example/p.png) |\n\n'
    "\u202eturned\u202c \u2066isolated\n"
)
HOSTILE_NAME = '"><img src=x onerror=window.harm=8>\u202etxt.exe'
TRACKER = "https://tracker.example/seen.png"
LONG = HOSTILE + "\u202e" + "x" * 100_000
"""Markup, text that turns, and a word of 100 kB."""


def _named(*keys: str, **others: Any) -> dict[str, Any]:
    """Return an object of which these fields are hostile."""
    return {**dict.fromkeys(keys, LONG), **others}


BATCH: dict[str, Any] = _named(
    "endpoint",
    "model",
    id="batch_1",
    status="failed",
    created_at=1,
    expires_at=2,
    failed_at=2,
    usage={"total_tokens": 1},
    metadata={LONG: LONG, "link": "javascript:window.harm=21"},
    request_counts={"total": 1, "completed": 0, "failed": 1},
    errors={"data": [_named("code", "message", line=1)]},
    error_file_id="file-1",
    output_file_id=None,
)
FAILED_LINE = {"custom_id": LONG[:100_000], "response": None, "error": _named("code", "message")}
ENDPOINT = _named(
    "name",
    "disabled_reason",
    id="we_1",
    url="javascript:window.harm=22//" + LONG,
    event_types=[LONG],
    disabled_at=1,
)
DELIVERY = {
    "id": "d_1",
    "status": "failed",
    "created_at": 1,
    "attempts": [_named("answer", status_code=500)],
    "event": _named("type", data={"id": "resp_" + LONG}),
}
USED = _named(
    *("model", "user_id", "project_id", "api_key_id", "metadata"),
    **dict.fromkeys(("requests", "input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "images"), 1),
    **{key: {LONG: 1} for key in ("statuses", "errors", "tool_calls")},
    **{key: {"8": 1} for key in ("first_token_ms", "duration_ms")},
    cost=None,
)
ROW = dict.fromkeys(("words", "answer", "model", "previous_response_id", "conversation"), HOSTILE) | {
    "id": "resp_1",
    "status": "failed",
    "created_at": 1,
    "metadata": {HOSTILE: HOSTILE},
    "error": HOSTILE,
    "owner": {"name": HOSTILE, "tenant": HOSTILE},
    "snippet": [{"text": HOSTILE, "match": True}],
    "score": {"score": 1, "note": HOSTILE},
    "tools": [HOSTILE],
}
OBJECTS: dict[str, tuple[str, dict[str, Any], Sequence[str]]] = {
    "batches": (
        "/ui/batches",
        {"/v1/batches": {"data": [BATCH], "has_more": False}, "/v1/files/": FAILED_LINE},
        [".batch button:has-text('Failed lines')", "dialog header .button"],
    ),
    "webhooks": (
        "/ui/webhooks",
        {
            "/v1/webhook_endpoints/we_1/deliveries": {"data": [DELIVERY], "has_more": False},
            "/v1/webhook_endpoints?": {"data": [ENDPOINT]},
        },
        [".endpoint summary"],
    ),
    **{
        f"usage by {by}": (
            f"/ui/usage?by={by}",
            {"/v1/organization/": {"data": [{"start_time": 1, "end_time": 2, "results": [USED]}]}},
            [],
        )
        for by in ("model", "user_id", "metadata")
    },
    "rows": ("/ui", {"/v1/ui/responses?": {"data": [ROW], "has_more": False, "next": None, "search": None}}, []),
    "rerun": (
        "/ui",
        {
            "/v1/ui/responses?": {"data": [ROW], "has_more": False, "next": None, "search": None},
            "/v1/models": {"data": [{"id": LONG}]},
        },
        ["button:has-text('Select')", "button:has-text('Select the first')", "button:has-text('Run again')"],
    ),
    "owners": (
        "/ui?owners=all",
        {"/v1/admin/ui/responses?": {"data": [ROW], "has_more": False, "next": None, "search": None}},
        [],
    ),
}
"""Views with what their routes answer, by parts of the addresses, and what is pressed there."""


def opened(page: BrowserPage, showcase: Showcase, view: str) -> None:
    """Open a view, with all its folds."""
    page.goto(VIEWS[view].format(**{name: getattr(showcase, name) for name in showcase.__slots__}))
    page.until(SETTLED)
    page.page.evaluate("() => document.querySelectorAll('details.fold').forEach((fold) => (fold.open = true))")


@pytest.mark.one_host
@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.extended)])
@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_no_violation(
    browser: Browser, page_stack: LiveStack, showcase: Showcase, view: str, scheme: str
) -> None:
    with browser.page(page_stack.base_url, color_scheme=scheme, reduced_motion="reduce") as page:
        opened(page, showcase, view)
        assert page.axe() == []


def test_page_that_is_older_than_its_server_says_so(browser: Browser, page_stack: LiveStack) -> None:
    with browser.page(page_stack.base_url) as page:
        page.goto("/ui")
        page.find("#nav a", "Sessions")
        index: str = page.page.evaluate("() => fetch('/ui').then((answer) => answer.text())")
        newer = re.sub("v-[0-9a-f]{16}", "v-0123456789abcdef", index)
        page.page.route("**/sessions.js", lambda route: route.fulfill(body="gone", status=404))
        page.page.route("**/ui", lambda route: route.fulfill(body=newer, content_type="text/html"))
        page.press("g", "s")
        page.find(".empty", "The page is older than its server")
        assert page.axe() == []
        page.page.unroute_all()
        page.find("button", "Load the new one").click()
        page.find("h1", "Sessions")


@pytest.mark.one_host
@pytest.mark.parametrize("view", VIEWS)
def test_view_fits_the_width_of_a_phone(browser: Browser, page_stack: LiveStack, showcase: Showcase, view: str) -> None:
    size = {"width": 360, "height": 740}
    with browser.page(page_stack.base_url, viewport=size, has_touch=True) as page:
        opened(page, showcase, view)
        assert page.page.evaluate("() => document.getElementById('main').scrollWidth") <= 360
        assert page.fits()
        assert page.axe() == []


@pytest.mark.one_host
def test_theme_is_switched_and_kept(page: BrowserPage) -> None:
    page.goto("/ui")
    before = page.page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    page.press("t", "t")
    assert page.page.evaluate("() => document.documentElement.dataset.theme") == "dark"
    after = page.page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert before != after
    page.page.reload()
    page.find("main h1, .list-row, .empty")
    assert page.page.evaluate("() => getComputedStyle(document.body).backgroundColor") == after


@pytest.mark.one_host
def test_reduced_motion_stops_all_animations(browser: Browser, page_stack: LiveStack, showcase: Showcase) -> None:
    with browser.page(page_stack.base_url, reduced_motion="reduce") as page:
        opened(page, showcase, "live")
        assert page.page.evaluate("() => document.getAnimations().length") == 0


@pytest.fixture
def victim(page_stack: LiveStack, upstream: Upstream, mcp: McpServers) -> str:
    """A response in which the model, a tool, a file's name, the user and the metadata are hostile."""
    call = tool_call(0, "c1", "bad__echo", '{"text": "<img src=x onerror=window.harm=9>"}')
    upstream.script("evil", [reply(reasoning(HOSTILE), call), reply(text(HOSTILE))])
    server = {"type": "mcp", "server_label": "bad", "server_url": mcp.url("mcp"), "require_approval": "never"}
    file = {"type": "input_file", "filename": HOSTILE_NAME, "file_data": "data:text/plain;base64,SGVsbG8="}
    remote = {"type": "input_image", "image_url": TRACKER}
    content = [{"type": "input_text", "text": HOSTILE}, file, remote]
    with Wire(page_stack) as wire:
        response = wire.create(
            model="local/evil",
            instructions=HOSTILE,
            input=[{"role": "user", "content": content}],
            tools=[server],
            metadata={"<script>window.harm=10</script>": HOSTILE[:400]},
        )
    return str(response["id"])


@pytest.mark.one_host
@pytest.mark.parametrize(
    "address",
    [
        "/ui?model=local%2Fevil",
        "/ui/responses/{id}",
        "/ui/chain/{id}",
        "/ui/responses/{id}/replay",
        "/ui/compare?a={id}&b={id}",
        "/ui/playground?from={id}",
        "/ui?text=%3Cimg%20src%3Dx%20onerror%3Dwindow.harm%3D11%3E",
        "/ui/responses/%3Cimg%20src=x%20onerror=harm=12%3E",
    ],
)
def test_hostile_content_never_runs_and_loads_nothing(
    browser: Browser, page_stack: LiveStack, victim: str, address: str
) -> None:
    with browser.page(page_stack.base_url) as page:
        page.goto(address.format(id=victim))
        page.until(SETTLED)
        page.page.evaluate("() => document.querySelectorAll('details').forEach((fold) => (fold.open = true))")
        if "replay" in address:
            page.press("End")
            page.find(".growing .message")
        page.page.wait_for_timeout(200)
        assert page.page.evaluate("() => window.harm") is None
        assert page.page.locator("main script, main iframe, main form[action], main style, main object").count() == 0
        assert page.page.locator("main [onerror], main [onload], main ui-list ui-list").count() == 0
        assert page.page.locator("img:not([src^='data:image/'])").count() == 0
        links = page.page.eval_on_selector_all("a[href]", "links => links.map((link) => link.protocol)")
        assert set(links) <= {"http:", "https:", "mailto:"}
        assert page.foreign == []
        assert not [one for one in page.problems if "Failed to load resource" not in one]
        assert page.find("body").is_visible()


def _answer(content: str, route: Route) -> None:
    route.fulfill(body=content, content_type="application/json")


@pytest.mark.one_host
@pytest.mark.parametrize("view", OBJECTS)
def test_hostile_objects_run_nothing_and_are_cut(browser: Browser, page_stack: LiveStack, view: str) -> None:
    address, answers, pressed = OBJECTS[view]
    with browser.page(page_stack.base_url, viewport={"width": 360, "height": 740}) as page:
        for part, answer in answers.items():
            page.page.route(re.compile(re.escape(part)), partial(_answer, json.dumps(answer)))
        page.goto(address)
        page.until(SETTLED)
        for button in pressed:
            page.page.locator(button).first.click()
        page.until("() => document.querySelector('#main').innerText.includes('<script>window.harm')")
        assert page.page.evaluate("() => window.harm") is None
        assert page.page.locator(":is(main, dialog) :is(script, iframe, style, object, img, [onerror])").count() == 0
        links = page.page.eval_on_selector_all("a[href]", "links => links.map((link) => link.protocol)")
        assert set(links) == {"http:"}
        assert page.page.evaluate("() => document.body.innerText.length") < 10_000
        assert page.fits()
        assert page.foreign == []


@pytest.mark.one_host
def test_file_name_that_turns_its_text_ends_with_its_element(
    browser: Browser, page_stack: LiveStack, victim: str
) -> None:
    with browser.page(page_stack.base_url) as page:
        page.goto(f"/ui/responses/{victim}")
        chip = page.find(".chip", "exe")
        places = chip.locator("span").evaluate_all("spans => spans.map((one) => one.getBoundingClientRect().left)")
        assert places == sorted(places)
        assert chip.locator("span").first.evaluate("one => getComputedStyle(one).unicodeBidi") == "isolate"


@pytest.mark.one_host
def test_image_of_another_host_is_a_link_and_the_policy_refuses_to_load_it(
    browser: Browser, page_stack: LiveStack, victim: str
) -> None:
    with browser.page(page_stack.base_url) as page:
        page.goto(f"/ui/responses/{victim}")
        page.find(".chip", "tracker.example (not loaded)")
        assert page.foreign == []
        with page.page.expect_console_message(lambda message: "Content Security Policy" in message.text):
            page.page.evaluate(
                "(url) => { const made = new Image(); made.src = url; document.body.append(made) }", TRACKER
            )


def test_hostile_answer_never_runs_while_it_streams(page: BrowserPage, upstream: Upstream) -> None:
    upstream.script("evil", reply(text(*(HOSTILE[at : at + 7] for at in range(0, len(HOSTILE), 7)))))
    page.goto("/ui/playground")
    page.until("() => document.querySelector('select[name=model]')?.options.length > 0")
    page.page.evaluate(
        "() => { const field = document.querySelector('select[name=model]');"
        " field.append(new Option('local/evil')); field.value = 'local/evil' }"
    )
    page.page.locator("textarea[name=input]").fill(HOSTILE)
    page.press("Control+Enter")
    page.find(".row a", "Details")
    assert page.page.evaluate("() => window.harm") is None
    assert page.page.locator(".talk iframe, .talk script, .talk img").count() == 0


def test_page_has_a_strict_policy_and_no_inline_code(page: BrowserPage) -> None:
    answer = page.page.goto(page.root + "/ui")
    assert answer is not None
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    html = (STATIC / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\bon\w+=|\bstyle=", html)


@pytest.mark.one_host
def test_whole_page_is_small_and_requests_no_other_host() -> None:
    files = [path for path in STATIC.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 373_500
    for path in files:
        for url in re.findall(r"https?://[^\s\"'`)]+", path.read_text()):
            assert url.startswith(("http://www.w3.org/", "https://…", "https?:")), f"{path.name}: {url}"


@pytest.fixture(scope="module")
def guarded(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveStack]:
    """A stack with users."""

    def guard(config: dict[str, Any]) -> None:
        provider: dict[str, Any] = {"type": "custom", "endpoint": url}
        if host == "ogx":
            provider["tenant_field"] = "tenant"
        config["server"]["auth"] = {"provider_config": provider, "access_policy": POLICY}

    folder: Path = tmp_path_factory.mktemp("guarded")
    with auth_server(USERS) as url:
        env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url}
        with LiveStack(variant(STARTER, folder / "config.yaml", guard), env, folder / "state", host=host) as live:
            yield live


def sign_in(page: BrowserPage, token: str) -> None:
    """Fill in the token that the page asks for."""
    page.find("dialog input[name=token]").fill(token)
    page.press("Enter")


def test_token_is_requested_and_kept_for_the_session_only(
    browser: Browser, guarded: LiveStack, upstream: Upstream
) -> None:
    upstream.script("small", reply(text("Hello, Ada.")))
    with Wire(guarded, token="token-of-ada") as wire:
        response_id = wire.create(model="local/small", input="A secret of Ada.")["id"]
    with browser.page(guarded.base_url) as page:
        page.goto("/ui")
        assert page.axe() == []
        sign_in(page, "wrong")
        page.find("dialog .error-text", "did not accept")
        sign_in(page, "token-of-ada")
        page.find(f".list-row[data-id={response_id}]")
        assert "ada" in page.find(".owner").inner_text()
        stored = page.page.evaluate("() => [JSON.stringify({...localStorage}), document.cookie, location.href]")
        assert "token-of-ada" not in "".join(stored)
        page.page.reload()
        page.find(f".list-row[data-id={response_id}]")
        assert not [one for one in page.requests if "token-of" in one]
        assert "token-of-ada" not in guarded.log.read_text(errors="replace")
        page.page.get_by_role("button", name="Forget the token").click()
        page.find("dialog input[name=token]")


def test_shared_response_is_read_without_signing_in_until_its_links_are_revoked(
    browser: Browser, guarded: LiveStack, upstream: Upstream
) -> None:
    upstream.script("small", reply(text(HOSTILE)))
    with Wire(guarded, token="token-of-ada") as wire:
        response_id = wire.create(model="local/small", input=HOSTILE, metadata={"<b>": HOSTILE[:400]})["id"]
    with browser.page(guarded.base_url, color_scheme="dark") as page:
        page.goto(f"/ui/responses/{response_id}")
        sign_in(page, "token-of-ada")
        page.find(".button.share").focus()
        page.press("Enter")
        page.find("dialog select").focus()
        page.press("ArrowDown", "Tab", "Enter")
        link = page.find("dialog .share-link input").input_value()
        page.find("dialog .share-list", "by ada")
        assert page.axe() == []
        with browser.page(guarded.base_url, viewport={"width": 360, "height": 740}) as reader:
            reader.goto(link.removeprefix(guarded.base_url))
            reader.find(".message[data-role=assistant]")
            reader.page.evaluate("() => document.querySelectorAll('details').forEach((fold) => (fold.open = true))")
            assert reader.page.evaluate("() => window.harm") is None
            assert reader.page.locator("dialog, #nav a:visible, .share, .scoring, main a[href^='/ui']").count() == 0
            assert reader.fits()
            assert reader.axe() == []
            assert [one for one in reader.requests if "/v1/" in one] == ["GET /v1/ui/shared"]
            page.find("dialog button", "Revoke all links").focus()
            page.press("Enter")
            page.gone("dialog .share-list li")
            reader.page.reload()
            reader.find("[role=alert]", "This link does not lead to a response")
            assert reader.axe() == []
    assert link.partition("#")[2] not in guarded.log.read_text(errors="replace")


@pytest.mark.one_host
def test_sign_in_stays_until_it_gets_a_token_that_fits_into_a_header(browser: Browser, guarded: LiveStack) -> None:
    with browser.page(guarded.base_url) as page:
        page.goto("/ui")
        page.find("dialog input[name=token]")
        page.press("Escape", "Escape", "Escape")
        sign_in(page, "token→of-ada")
        page.find("dialog input[name=token]:invalid")
        sign_in(page, "Bearer token-of-ada")
        page.find(".owner", "ada")
        page.find(".connection[data-state=on]")


def test_response_of_a_team_names_its_owner_and_is_in_no_list_of_others(
    browser: Browser, guarded: LiveStack, upstream: Upstream
) -> None:
    upstream.script("small", reply(text("Hello, team.")))
    with Wire(guarded, token="token-of-ada") as wire:
        response_id = wire.create(model="local/small", input="For the team.")["id"]
    with browser.page(guarded.base_url) as page:
        page.goto("/ui")
        sign_in(page, "token-of-carol")
        page.find(".empty", "No responses yet")
        page.goto(f"/ui/responses/{response_id}")
        assert page.find(".head .tag").inner_text() == "owner: ada"
        assert "ada" in page.find(".facts > div", "Owner").inner_text()
    with browser.page(guarded.base_url) as page:
        page.goto("/ui")
        sign_in(page, "token-of-ada")
        page.find(f".list-row[data-id={response_id}] a").click()
        page.find(".facts > div", "Owner")
        assert page.page.locator(".head .tag").count() == 0


def test_summary_of_a_compaction_opens_for_its_user_only(
    browser: Browser, guarded: LiveStack, upstream: Upstream
) -> None:
    answers = [reply(text("Noted. " * 60)), reply(text("The user is called Ada.")), reply(text("Ada."))]
    upstream.script("small", answers)
    compacting: Any = [{"type": "compaction", "compact_threshold": 100}]
    with Wire(guarded, token="token-of-ada") as wire:
        first = wire.create(model="local/small", input="My name is Ada. " + "And so on. " * 60)["id"]
        request = {"model": "local/small", "input": "Who am I?", "context_management": compacting}
        response_id = wire.create(previous_response_id=first, **request)["id"]
    for token, words in (("token-of-ada", "The user is called Ada."), ("token-of-carol", "The summary is encrypted.")):
        with browser.page(guarded.base_url) as page:
            page.goto("/ui")
            sign_in(page, token)
            page.find(".list-row, .empty")
            page.goto(f"/ui/chain/{response_id}")
            page.find(".compaction summary").click()
            page.find(".compaction .fold-body", words)


def test_another_user_cannot_see_a_response(browser: Browser, guarded: LiveStack, upstream: Upstream) -> None:
    upstream.script("small", reply(text("Hello, Ada.")))
    with Wire(guarded, token="token-of-ada") as wire:
        response_id = wire.create(model="local/small", input="A secret of Ada.")["id"]
    with browser.page(guarded.base_url) as page:
        page.goto("/ui")
        sign_in(page, "token-of-bob")
        page.find(".empty", "No responses yet")
        for address in ("/ui/responses/{}", "/ui/chain/{}", "/ui/responses/{}/replay", "/ui/compare?a={}&b={}"):
            page.goto(address.format(response_id, response_id))
            page.find("h1", "Not found")
            assert "secret" not in page.find("main").inner_text()
