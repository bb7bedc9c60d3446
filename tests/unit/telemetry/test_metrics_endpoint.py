"""The metrics of several processes in one scrape."""

from __future__ import annotations

import socket
import urllib.request
from typing import Final

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from llama_stack_responses.telemetry.metrics_endpoint import MetricsEndpoint

LOCAL: Final = {"OTEL_EXPORTER_PROMETHEUS_HOST": "127.0.0.1"}


def text_of(count: int) -> str:
    """Return the metrics of a process."""
    registry = CollectorRegistry()
    Counter("requests", "Requests", ["kind"], registry=registry).labels("a").inc(count)
    Gauge("running", "Running responses", registry=registry).set(count)
    Histogram("seconds", "Time", buckets=[1, 2], registry=registry).observe(count)
    return generate_latest(registry).decode()


def scraped(port: str) -> dict[tuple[str, str], float]:
    """Scrape, and return the values by name and process."""
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
    families = list(text_string_to_metric_families(text))
    assert len({each.name for each in families}) == len(families), "a family is not in one place"
    return {
        (sample.name, sample.labels.get("process", "")): sample.value for each in families for sample in each.samples
    }


@pytest.fixture
def port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def test_scrape_has_the_values_of_each_process(port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llama_stack_responses.telemetry.metrics_endpoint.own_metrics", lambda: text_of(3))
    endpoint = MetricsEndpoint(lambda: 1, lambda: {0: text_of(5)}, LOCAL | {"OTEL_EXPORTER_PROMETHEUS_PORT": port})
    endpoint.open()
    try:
        found = scraped(port)
    finally:
        endpoint.close()
    assert (found["requests_total", "0"], found["requests_total", "1"]) == (5, 3)
    assert (found["running", "0"], found["running", "1"]) == (5, 3)
    assert (found["seconds_sum", "0"], found["seconds_sum", "1"]) == (5, 3)


def test_only_process_has_no_number_in_its_scrape(port: str) -> None:
    endpoint = MetricsEndpoint(lambda: None, dict, LOCAL | {"OTEL_EXPORTER_PROMETHEUS_PORT": port})
    endpoint.open()
    try:
        assert {process for _, process in scraped(port)} == {""}
    finally:
        endpoint.close()


def test_endpoint_is_free_for_another_process_after_its_end(port: str) -> None:
    env = LOCAL | {"OTEL_EXPORTER_PROMETHEUS_PORT": port}
    first, second = (MetricsEndpoint(lambda: None, dict, env) for _ in range(2))
    first.open()
    with pytest.raises(OSError, match="in use"):
        second.open()
    first.close()
    second.open()
    assert (first.serves, second.serves) == (False, True)
    second.close()
