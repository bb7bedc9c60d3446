"""Web search on a live stack: SearXNG, opened pages, citations and failures."""

import json
from collections.abc import Iterator
from threading import Event
from typing import Any

import openai
import pytest

from tests.support.certificates import Certificates
from tests.support.openai_client import MODEL, NAME, create, function, messages, stored, stream, tool_outputs
from tests.support.reader import Reader
from tests.support.search import searxng, tavily
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.strict import check_stream
from tests.support.upstream import Upstream, UpstreamProcess, logprobs, reply, text, tool_call
from tests.support.variants import open_this_machine, traces, variant
from tests.support.waiting import wait_until
from tests.support.web import Answer, ReceivedRequest, Web
from tests.support.wire import Json, Wire, final, output_text

pytestmark = [pytest.mark.live, pytest.mark.both_hosts]

SEARCH: Any = {"type": "web_search"}
OTTERS = "<html><head><title>All about otters</title></head><body><article><p>{}</p></article></body></html>".format(
    "</p><p>".join(
        ["Otters live in rivers.", "They sleep hand in hand, so that nobody drifts apart.", "They eat fish."]
    )
)


def calls(*entries: tuple[str, Json]) -> Any:
    """Return a reply with these calls."""
    return reply(
        *(
            tool_call(place, f"call_{place}", name, json.dumps(arguments))
            for place, (name, arguments) in enumerate(entries)
        )
    )


def find(web: Web, *paths: str) -> None:
    """Have SearXNG find these pages."""

    def search(request: ReceivedRequest) -> Answer:
        found = [(web.url(path), f"About {path[1:]}", f"Everything about {path[1:]}.") for path in paths]
        assert request.query["format"] == "json"
        body = json.dumps(searxng(request.query["q"], found)).encode()
        return Answer(body, headers={"content-type": "application/json"})

    web.answers["/searxng/search"] = search


def searched(web: Web) -> list[str]:
    """Return the queries to SearXNG."""
    return [request.query["q"] for request in web.seen if request.path == "/searxng/search"]


def web_calls(response: Json) -> list[Json]:
    """Return the web search calls of a response."""
    return [item for item in response["output"] if item["type"] == "web_search_call"]


def cited(response: Json) -> list[tuple[str, str]]:
    """Return the cited text and the URL of each citation."""
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return [
        (part["text"][note["start_index"] : note["end_index"]], note["url"])
        for part in parts
        for note in part["annotations"]
    ]


def test_web_search_opens_finds_and_cites_pages(
    client: openai.OpenAI, wire: Wire, upstream: Upstream, web: Web
) -> None:
    find(web, "/otters", "/fish")
    web.say("/otters", OTTERS)
    upstream.script(
        NAME,
        [
            calls(("web_search", {"queries": ["otters asleep", "sea otters"]})),
            calls(("open_page", {"page": "1"})),
            calls(("find_in_page", {"page": "1", "pattern": "hand in hand"})),
            reply(text("Hand in hand", " 【", "1", "†L2", "】", ", not【7】."), text(" Fish【2】"), text(".")),
        ],
    )
    include = ["web_search_call.action.sources", "web_search_call.results"]
    streamed = stream(client, model=MODEL, input="How do otters sleep?", tools=[SEARCH], include=include)
    response = streamed.response
    search, opened, found = web_calls(response)
    otters, fish = web.url("/otters"), web.url("/fish")
    assert [item["status"] for item in web_calls(response)] == ["completed"] * 3
    assert search["action"] == {
        "type": "search",
        "query": "otters asleep",
        "queries": ["otters asleep", "sea otters"],
        "sources": [{"type": "url", "url": otters}, {"type": "url", "url": fish}],
    }
    assert search["results"][1] == {"url": fish, "title": "About fish", "snippet": "Everything about fish."}
    assert opened["action"] == {"type": "open_page", "url": otters}
    assert found["action"] == {"type": "find_in_page", "url": otters, "pattern": "hand in hand"}
    assert sorted(searched(web)) == ["otters asleep", "sea otters"]
    assert response["tool_usage"]["web_search"] == {"num_requests": 1}
    assert "L2: They sleep hand in hand" in tool_outputs(upstream)[1]
    assert [request.path for request in web.seen].count("/otters") == 1
    links = [f"([127.0.0.1]({url}))" for url in (otters, fish)]
    assert output_text(response) == f"Hand in hand {links[0]}, not【7】. Fish {links[1]}."
    assert cited(response) == [(links[0], otters), (links[1], fish)]
    assert "".join(streamed.texts("output_text")) == output_text(response)
    assert streamed.types.count("output_text.annotation.added") == 2
    assert not any("function_call" in name for name in streamed.types)
    assert stored(client, response["id"]) == response
    assert wire.replay(response["id"]) == streamed.events


def test_sdk_stream_helper_reads_web_search(client: openai.OpenAI, upstream: Upstream, web: Web) -> None:
    find(web, "/otters")
    upstream.script(NAME, [calls(("web_search", {"query": "otters"})), reply(text("Yes 【1】."))])
    with client.responses.stream(model=MODEL, input="Otters?", tools=[SEARCH]) as events:
        kinds = [event.type for event in events]
        response = events.get_final_response()
    assert "response.output_text.annotation.added" in kinds
    assert response.output_text == f"Yes ([127.0.0.1]({web.url('/otters')}))."


def test_web_search_sources_are_kept_in_the_chain(client: openai.OpenAI, upstream: Upstream, web: Web) -> None:
    find(web, "/otters", "/fish")
    web.say("/fish", "Fish swim.", "text/plain")
    upstream.script(
        NAME,
        [
            calls(("web_search", {"queries": ["otters"]})),
            reply(text("Fish【2】.")),
            calls(("open_page", {"page": "2"})),
            reply(text("They swim【2†L1】.")),
        ],
    )
    first = create(client, model=MODEL, input="What do otters eat?", tools=[SEARCH])
    second = create(client, model=MODEL, input="More.", tools=[SEARCH], previous_response_id=first["id"])
    assert web_calls(second)[0]["action"]["url"] == web.url("/fish")
    assert [url for _, url in cited(second)] == [web.url("/fish")]
    output = messages(upstream)
    assert [message["role"] for message in output][:5] == ["user", "assistant", "tool", "assistant", "user"]
    assert "Everything about fish" in output[2]["content"]


def test_web_search_call_sent_back_by_client_is_replayed(client: openai.OpenAI, upstream: Upstream, web: Web) -> None:
    find(web, "/otters")
    upstream.script(NAME, [calls(("web_search", {"queries": ["otters"]})), reply(text("Yes【1】."))])
    questions: Any = [{"role": "user", "content": "Otters?"}]
    first = create(client, model=MODEL, input=questions, tools=[SEARCH], store=False)
    create(client, model=MODEL, input=[*questions, *first["output"], *questions], tools=[SEARCH], store=False)
    [call] = messages(upstream)[1]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])["queries"]) == (
        "web_search",
        ["otters"],
    )


def test_web_search_respects_allowed_domains_and_offline_access(
    client: openai.OpenAI, upstream: Upstream, web: Web
) -> None:
    find(web, "/otters")
    upstream.script(NAME, [calls(("web_search", {"queries": ["otters"]})), reply(text("No."))])
    tool: Any = {"type": "web_search", "filters": {"allowed_domains": ["otters.example"]}, "external_web_access": False}
    response = create(client, model=MODEL, input="Hi", tools=[tool], include=["web_search_call.action.sources"])
    assert searched(web) == ["otters (site:otters.example)"]
    assert web_calls(response)[0]["action"]["sources"] == []
    offered = [each["function"]["name"] for each in upstream.requests(NAME)[0].body["tools"]]
    assert offered == ["web_search"]


def test_pages_at_forbidden_addresses_are_not_opened(
    client: openai.OpenAI, upstream: Upstream, web: Web, calm: None
) -> None:
    port = upstream.url.rsplit(":", 1)[1]
    web.answers["/inside"] = Answer(status=302, headers={"location": "http://169.254.169.254/latest/meta-data/"})
    pages = ["http://127.0.0.2:1/", f"http://[::1]:{port}/_requests", "file:///etc/passwd", web.url("/inside"), "9"]
    upstream.script(NAME, [calls(*(("open_page", {"page": page}) for page in pages)), reply(text("No."))])
    response = create(client, model=MODEL, input="Hi", tools=[SEARCH])
    assert [item["status"] for item in web_calls(response)] == ["failed"] * 5
    assert response["status"] == "completed"
    assert [("no public address" in each or "no such page" in each) for each in tool_outputs(upstream)] == [True] * 5


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Answer(b"Forbidden", 403), "refuses to answer in JSON"),
        (Answer(b"broken", 500), "answered 500"),
        (Answer(b"<html>no JSON</html>"), "failed (InvalidJsonError)"),
    ],
)
def test_failure_of_the_search_service_is_reported_to_the_model(
    client: openai.OpenAI, upstream: Upstream, web: Web, calm: None, answer: Answer, why: str
) -> None:
    web.answers["/searxng/search"] = answer
    upstream.script(NAME, [calls(("web_search", {"queries": ["otters"]})), reply(text("I could not look."))])
    response = create(client, model=MODEL, input="Otters?", tools=[SEARCH])
    [item] = web_calls(response)
    assert (item["status"], response["status"]) == ("failed", "completed")
    assert why in tool_outputs(upstream)[0]


def test_invalid_unknown_and_excess_search_calls_are_not_run(
    client: openai.OpenAI, upstream: Upstream, web: Web
) -> None:
    find(web, "/otters")
    upstream.script(
        NAME,
        [
            reply(
                tool_call(0, "call_0", "web_search", '{"queries": a}'),  # whole: half a call fails the response
                tool_call(1, "call_1", "search_the_web", '{"q": "a"}'),
                tool_call(2, "call_2", "web_search", '{"queries": ["a"]}'),
                tool_call(3, "call_3", "web_search", '{"queries": ["b"]}'),
            ),
            reply(text("Enough.")),
        ],
    )
    response = create(client, model=MODEL, input="Hi", tools=[SEARCH], max_tool_calls=2)
    assert [(item["action"]["query"], item["status"]) for item in web_calls(response)] == [
        ("", "failed"),
        ("a", "completed"),
    ]
    assert searched(web) == ["a"]
    broken, unknown, answer, one_too_many = tool_outputs(upstream)
    assert "are not valid for 'web_search'" in broken
    assert "There is no tool named 'search_the_web'" in unknown
    assert "About otters" in answer
    assert "No more tools may be called" in one_too_many


def test_endless_web_searches_end_as_incomplete(client: openai.OpenAI, upstream: Upstream, web: Web) -> None:
    find(web, "/otters")
    upstream.script(NAME, calls(("web_search", {"queries": ["again"]})))
    response = create(client, model=MODEL, input="Hi", tools=[SEARCH])
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_messages"})
    assert len(web_calls(response)) == 8
    assert ["tools" in each.body for each in upstream.requests(NAME)] == [True] * 8 + [False] * 2


def test_model_answers_once_max_tool_calls_is_spent(client: openai.OpenAI, upstream: Upstream, web: Web) -> None:
    find(web, "/otters")
    upstream.script(NAME, [calls(("web_search", {"queries": ["a"]})), reply(text("Enough."))])
    response = create(client, model=MODEL, input="Hi", tools=[SEARCH], max_tool_calls=1)
    assert (response["status"], len(web_calls(response))) == ("completed", 1)
    first, last = upstream.requests(NAME)
    assert ("tools" in first.body, "tools" in last.body) == (True, False)


def test_web_search_and_client_function_in_one_round_are_both_answered(
    client: openai.OpenAI, upstream: Upstream, web: Web
) -> None:
    find(web, "/otters")
    upstream.script(
        NAME,
        [
            calls(("web_search", {"queries": ["otters"]}), ("weather", {"city": "Bern"})),
            reply(text("Sunny【1】.")),
        ],
    )
    first = create(client, model=MODEL, input="Hi", tools=[SEARCH, function("weather", "city")])
    assert {item["type"] for item in first["output"]} == {"web_search_call", "function_call"}
    [call_id] = [item["call_id"] for item in first["output"] if item["type"] == "function_call"]
    output: Any = {"type": "function_call_output", "call_id": call_id, "output": "sun"}
    second = create(
        client,
        model=MODEL,
        input=[output],
        tools=[SEARCH, function("weather", "city")],
        previous_response_id=first["id"],
    )
    assert [url for _, url in cited(second)] == [web.url("/otters")]
    assert {content.splitlines()[-1] for content in tool_outputs(upstream)} == {"Everything about otters.", "sun"}


def test_model_with_native_browser_tools_searches_and_cites(
    client: openai.OpenAI, upstream: Upstream, web: Web
) -> None:
    find(web, "/otters")
    web.say("/otters", OTTERS)
    upstream.script(
        "browsing",
        [
            calls(("browser.search", {"query": "otters"})),
            calls(("browser.open", {"id": 0})),
            reply(text("Hand in hand【1†L3", "-L4】.")),
            reply(text("As I said【1†L3】.")),
        ],
    )
    model = MODEL.replace(NAME, "browsing")
    streamed = stream(client, model=model, input="How do otters sleep?", tools=[SEARCH])
    assert [item["action"]["type"] for item in web_calls(streamed.response)] == ["search", "open_page"]
    assert not any("function_call" in name for name in streamed.types)
    last = [each["content"] for each in messages(upstream, "browsing") if each["role"] == "tool"][-1]
    assert last.startswith(f"[1] All about otters ({web.url('/otters')})\n**viewing lines [0 - ")
    second = create(client, model=model, input="Sure?", tools=[SEARCH], previous_response_id=streamed.response["id"])
    assert [url for _, url in cited(streamed.response) + cited(second)] == [web.url("/otters")] * 2


def test_logprobs_leave_out_citation_markers(client: openai.OpenAI, upstream: Upstream, web: Web) -> None:
    find(web, "/otters")
    tokens = [("Yes", -0.1), ("【", -0.2), ("1", -0.3), ("】.", -0.4)]
    upstream.script(NAME, [calls(("web_search", {"queries": ["otters"]})), reply(logprobs(*tokens))])
    streamed = stream(client, model=MODEL, input="Otters?", tools=[SEARCH], include=["message.output_text.logprobs"])
    [part] = streamed.response["output"][-1]["content"]
    assert [entry["token"] for entry in part["logprobs"]] == ["Yes", "."]


def test_web_search_with_store_false_leaves_no_traces(
    stack: LiveStack, wire: Wire, upstream: Upstream, web: Web
) -> None:
    """Neither queries nor results are in the store or the log."""
    find(web, "/canary-found-7731")
    web.say("/canary-found-7731", "canary-page-7731", "text/plain")
    upstream.script(
        NAME,
        [
            calls(("web_search", {"queries": ["canary-query-7731"]})),
            calls(("open_page", {"page": "1"})),
            reply(text("Yes【1】.")),
        ],
    )
    response = final(wire.stream(model=MODEL, input="Otters?", tools=[SEARCH], store=False))
    assert wire.get(f"/{response['id']}").status_code == 404
    assert "canary-page-7731" in tool_outputs(upstream)[1]
    for canary in ("canary-query-7731", "canary-found-7731", "canary-page-7731"):
        assert traces(stack.state_dir, canary) == []


# -- a stack with Tavily, behind a proxy, that may be killed ----------------------


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Web, Certificates]]:
    """A proxy that answers for Tavily, and its certificates."""
    certificates = Certificates.create_in(tmp_path_factory.mktemp("tls"), ["api.tavily.com"])
    with Web(intercepts=certificates.of_server()) as proxy:
        yield proxy, certificates


@pytest.fixture(scope="module")
def mortal(
    host: Host,
    stack_env: dict[str, str],
    upstream_process: UpstreamProcess,
    proxy: tuple[Web, Certificates],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LiveStack]:
    """A stack with Tavily, behind a proxy, that may be killed."""
    folder = tmp_path_factory.mktemp("mortal")
    web, certificates = proxy
    env = {
        **stack_env,
        "INFERENCE_URL": upstream_process.client.base_url,
        "TAVILY_SEARCH_API_KEY": "tvly-of-the-stack",
        "HTTPS_PROXY": web.url(""),
        "SSL_CERT_FILE": certificates.path("ca.pem"),
    }
    config = variant(STARTER, folder / "config.yaml", open_this_machine)
    with LiveStack(config, env, folder / "state", host=host) as live:
        yield live


@pytest.fixture
def service(proxy: tuple[Web, Certificates]) -> Web:
    """Tavily without recorded requests, with one result."""
    web, _ = proxy
    web.reset()
    found = [("https://otters.example/", "Otters", "Otters swim.")]

    def search(request: ReceivedRequest) -> Answer:
        return Answer(json.dumps(tavily(request.json()["query"], found)).encode())

    web.answers["/search"] = search
    return web


@pytest.mark.one_host
@pytest.mark.extended  # a lease has to expire
def test_killed_server_repeats_only_the_unanswered_search(mortal: LiveStack, upstream: Upstream, service: Web) -> None:
    """The numbers of the citations stay valid."""
    answering, gate = service.answers["/search"], Event()
    held = calls(("web_search", {"queries": ["held"]}))
    upstream.script(NAME, [calls(("web_search", {"queries": ["first"]})), held, reply(text("They swim【1】."))])

    def search(request: ReceivedRequest) -> Answer:
        if request.json()["query"] == "held" and not gate.is_set():
            gate.wait(60)
            return Answer(status=503)
        assert callable(answering)
        return answering(request)

    service.answers["/search"] = search
    request = {"model": MODEL, "input": "Otters?", "tools": [SEARCH], "background": True}
    with Wire(mortal) as wire, Reader.create(wire, **request) as reader:
        wait_until(lambda: [each.json()["query"] for each in service.seen] == ["first", "held"])
        reader.read_to("response.web_search_call.completed")
        mortal.kill()
        reader.read_to_death()
    gate.set()
    mortal.start()
    upstream.wait_for(NAME, 3, ended=True)
    with Wire(mortal) as wire, Reader.of(wire, reader.response_id, reader.last) as again:
        events = reader.events + again.read_to_end()
        response = check_stream(events, taken_over=True)
        assert wire.replay(response["id"], taken_over=True) == events
    assert [each.json()["query"] for each in service.seen] == ["first", "held", "held"]
    assert [item["status"] for item in web_calls(response)] == ["completed", "completed"]
    assert [url for _, url in cited(response)] == ["https://otters.example/"]
    assert response["status"] == "completed"
    assert {each.json()["api_key"] for each in service.seen} == {"tvly-of-the-stack"}


def test_search_service_key_is_not_logged(mortal: LiveStack, upstream: Upstream, service: Web) -> None:
    service.answers["/search"] = Answer(b"{}", 401)
    upstream.script(NAME, [calls(("web_search", {"queries": ["otters"]})), reply(text("No."))])
    with Wire(mortal) as wire:
        response = wire.create(model=MODEL, input="Otters?", tools=[SEARCH])
    assert [item["status"] for item in web_calls(response)] == ["failed"]
    assert tool_outputs(upstream) == ["The service behind the tool 'web_search' answered 401."]
    assert "tvly-of-the-stack" not in mortal.log.read_text()
