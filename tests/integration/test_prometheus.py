"""Metrics as Prometheus scrapes them, and the queries of the Grafana dashboard."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import httpx
import promql_parser
import pytest
import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.support.certificates import Certificates
from tests.support.mcp_server import McpServers
from tests.support.openai_client import MODEL, NAME
from tests.support.process import free_port
from tests.support.reader import Reader
from tests.support.stack import REPOSITORY, STARTER, Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess, error, reply, text, tool_call
from tests.support.variants import open_this_machine, responses_config, variant
from tests.support.waiting import wait_until
from tests.support.websocket_client import WebSocketClient
from tests.support.wire import Json, Wire

# Spans and metrics of both hosts: `test_telemetry.py`. How they are scraped does not depend on the host.
pytestmark = pytest.mark.live

MONITORING: Final = REPOSITORY / "templates" / "monitoring"
HELD: Final = reply(text("one ", "two"), hold=1)
ANSWER: Final = reply(text("one ", "two"))


class ScrapedStack:
    """A stack and its port for scrapes."""

    def __init__(self, stack: LiveStack, port: int) -> None:
        self.stack = stack
        self.port = port

    def families(self) -> dict[str, Metric]:
        """Scrape, and return what Prometheus's own parser reads, by the name of the family.

        On a busy machine, a scrape may lack the store's gauges, because the store did not answer within two seconds.
        """
        found: dict[str, Metric] = {}

        def is_complete() -> bool:
            nonlocal found
            answer = httpx.get(f"http://127.0.0.1:{self.port}/metrics", timeout=60, trust_env=False, verify=False)
            assert answer.status_code == 200
            found = {family.name: family for family in text_string_to_metric_families(answer.text)}
            return "llama_stack_responses_queue_length" in found

        wait_until(is_complete)
        return found

    def value(self, name: str, **labels: str) -> float | None:
        """Scrape one value; None without it."""
        for family in self.families().values():
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return float(sample.value)
        return None


@pytest.fixture(scope="module")
def scraped(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ScrapedStack]:
    """A stack set up as the documentation says: one background response at a time, two rounds at the model server."""

    def change(config: Json) -> None:
        open_this_machine(config)
        responses_config(config)["background"] = {"concurrency": 1}
        responses_config(config)["model_servers"] = {"local": {"concurrency": 2}}
        responses_config(config)["watched_certificates"] = "${env.CERTIFICATES}"
        responses_config(config)["webhooks"] = {}
        responses_config(config)["usage"] = {"limits": [{"models": "local/limited", "requests_per_minute": 1}]}

    port = free_port()
    folder = tmp_path_factory.mktemp("scraped")
    env = {
        **stack_env,
        "INFERENCE_URL": upstream_process.client.base_url,
        "OTEL_METRICS_EXPORTER": "prometheus",
        "OTEL_EXPORTER_PROMETHEUS_PORT": str(port),
        "CERTIFICATES": Certificates.create_in(folder / "certificates").path("server.pem"),
    }
    config = variant(STARTER, folder / "config.yaml", change)
    with LiveStack(config, env, folder / "state", host=host) as stack:
        yield ScrapedStack(stack, port)


@pytest.fixture
def wire(scraped: ScrapedStack, upstream: Upstream) -> Iterator[Wire]:
    """A client of that stack."""
    with Wire(scraped.stack) as wire:
        yield wire


def test_gauges_follow_open_streams_and_queued_jobs(scraped: ScrapedStack, wire: Wire, upstream: Upstream) -> None:
    upstream.script(NAME, HELD)

    def gauge(name: str, **labels: str) -> float | None:
        return scraped.value(f"llama_stack_responses_{name}", **labels)

    with Reader.create(wire, model=MODEL, input="x") as reader, WebSocketClient(scraped.stack):
        reader.read_to("one ")
        for _ in range(3):
            wire.post({"model": MODEL, "input": "x", "background": True})
        wait_until(lambda: gauge("queue_length") == 2)
        wait_until(lambda: (gauge("queue_age_seconds") or 0) > 0)
        assert gauge("responses_running", kind="foreground") == 1
        wait_until(lambda: gauge("responses_running", kind="detached") == 1)
        assert gauge("connections_open", kind="stream") == 1
        assert gauge("connections_open", kind="websocket") == 1
        assert (gauge("store_size_bytes") or 0) > 10_000
        upstream.script(NAME, ANSWER)
        upstream.release(NAME)
        reader.read_to_end()
    wait_until(lambda: gauge("queue_length") == 0)
    wait_until(lambda: gauge("responses_running", kind="detached") == 0)
    wait_until(lambda: gauge("connections_open", kind="websocket") == 0)
    assert gauge("queue_age_seconds") == 0
    assert gauge("responses_running", kind="foreground") == 0
    assert gauge("connections_open", kind="stream") == 0


def test_dashboard_queries_name_exported_metrics(
    scraped: ScrapedStack, wire: Wire, upstream: Upstream, mcp: McpServers
) -> None:
    """Every metric and every label of every query is in a scrape after some work, and a failure of each kind."""
    call = reply(tool_call(0, "call_1", "mcp__echo", '{"text": "x"}'))
    upstream.script(NAME, [call, ANSWER])
    tool = {"type": "mcp", "server_label": "mcp", "server_url": mcp.url(), "require_approval": "never"}
    wire.create(model=MODEL, input="x", tools=[tool])
    queued = wire.create(model=MODEL, input="x", background=True)["id"]
    wait_until(lambda: wire.retrieve(queued)["status"] == "completed")  # its model has another script below
    assert wire.post({"model": "local/nothing", "input": "x"}).status_code == 404
    upstream.script("broken", error(500, "An otter."))
    assert wire.post({"model": "local/broken", "input": "x"}).status_code == 502
    limited = [wire.post({"model": "local/limited", "input": "x"}).status_code for _ in range(3)]
    assert 429 in limited
    wait_for_a_slot(scraped, wire, upstream)
    wait_until(lambda: scraped.value("llama_stack_responses_queue_duration_seconds_count") is not None)
    names: dict[str, set[str]] = {}
    for family in scraped.families().values():
        for sample in family.samples:
            names.setdefault(sample.name, {"instance"}).update(sample.labels)
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [
        re.sub(r"label_values\((.*), (.*)\)", r"sum by (\2) (\1)", each["query"])
        for each in dashboard["templating"]["list"]
        if each["type"] == "query"
    ]
    queries += [rule["expr"] for rule in rules()]
    assert len(queries) > 15
    for query in queries:
        tree = promql_parser.parse(query.replace("$__rate_interval", "1m"))
        for selector, labels in selectors(tree):
            if selector == "up":
                continue  # Prometheus's own
            known = names.get(selector)
            assert known is not None, f"{selector} is not exported: {query}"
            # The error of a call of the store occurs only with one.
            if not selector.startswith("llama_stack_responses_store"):
                assert labels <= known, f"{selector} has no labels {labels - known}: {query}"


def wait_for_a_slot(scraped: ScrapedStack, wire: Wire, upstream: Upstream) -> None:
    """Have a model round wait for a slot of the model server, and get it."""
    upstream.script(NAME, HELD)
    with Reader.create(wire, model=MODEL, input="x") as first, Reader.create(wire, model=MODEL, input="x") as second:
        for each in (first, second):
            each.read_to("one ")
        wire.post({"model": MODEL, "input": "x", "background": True})
        wait_until(lambda: scraped.value("llama_stack_responses_model_server_waiting") == 1)
        assert scraped.value("llama_stack_responses_model_server_running") == 2
        upstream.script(NAME, ANSWER)
        upstream.release(NAME)
        for each in (first, second):
            each.read_to_end()
    wait_until(lambda: (scraped.value("llama_stack_responses_model_server_wait_seconds_count") or 0) >= 1)


def rules() -> list[Json]:
    """Return the alerts of the template."""
    [group] = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    found: list[Json] = group["rules"]
    return found


def test_every_alert_has_a_case_that_fires_and_a_row_of_what_to_do() -> None:
    names = {rule["alert"] for rule in rules()}
    [fires, _] = yaml.safe_load((MONITORING / "alerts_test.yml").read_text())["tests"]
    fired = {sample["labels"] for test in fires["promql_expr_test"] for sample in test["exp_samples"]}
    assert fired == {f'{{alertname="{name}"}}' for name in names}
    guide = (REPOSITORY / "docs" / "guides" / "operations.md").read_text()
    assert names == set(re.findall(r"^\| `(Responses\w+)` \|", guide, re.MULTILINE))


def selectors(tree: Any, grouped: frozenset[str] = frozenset()) -> Iterator[tuple[str, set[str]]]:
    """Yield the name of each metric of a query, and the labels that the query uses of it."""
    inner: list[Any] = []
    match type(tree).__name__:
        case "VectorSelector":
            yield tree.name, {each.name for each in tree.matchers.matchers} | grouped
        case "MatrixSelector":
            inner = [tree.vector_selector]
        case "AggregateExpr":
            inner, grouped = [tree.expr], grouped | frozenset(tree.modifier.labels if tree.modifier else ())
        case "Call":
            inner = tree.args
        case "BinaryExpr":
            inner = [tree.lhs, tree.rhs]
        case "ParenExpr":
            inner = [tree.expr]
        case kind:
            assert kind == "NumberLiteral", f"{kind} in a query: have the test read it"
    for each in inner:
        yield from selectors(each, grouped)


def test_scrape_configuration_names_the_default_port() -> None:
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    [job] = config["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["127.0.0.1:9464"]}]


def test_runbook_names_panels_alerts_and_metrics_that_exist() -> None:
    guide = (REPOSITORY / "docs" / "guides" / "operations.md").read_text()
    table = guide.partition("## Three in the morning")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")][1:]
    lines = [[cell.strip() for cell in row] for row in rows]
    assert len(lines) > 10
    panels = {panel["title"] for panel in json.loads((MONITORING / "dashboard.json").read_text())["panels"]}
    metrics = guide.partition("| metric | meaning |")[2].partition("\n\n")[0]
    for _, measured, _, shown, *alerts in lines:
        for name in re.findall(r"`([a-z_.]+)`", measured):
            prefixed = (
                name if name.startswith(("gen_ai.", "up", "error.type", "kind")) else f"llama_stack_responses.{name}"
            )
            assert name in ("up", "kind", "error.type") or f"`{prefixed}`" in metrics, name
        assert not shown or any(shown.startswith(title) for title in panels), shown
        assert set(re.findall(r"`(\w+)`", " ".join(alerts))) <= {rule["alert"] for rule in rules()}
    named = " ".join(line[-1] for line in lines)
    assert [rule["alert"] for rule in rules() if rule["alert"] not in named] == []
