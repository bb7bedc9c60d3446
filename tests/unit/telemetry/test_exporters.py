"""The variables by which operators choose exporters. What arrives: `tests/integration/test_telemetry.py`."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from opentelemetry import metrics, trace

from llama_stack_responses.telemetry.exporters import Exporters


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The providers that are set, in place of the process's own, which could not be unset."""
    found: list[object] = []
    monkeypatch.setattr(trace, "set_tracer_provider", found.append)
    monkeypatch.setattr(metrics, "set_meter_provider", found.append)
    return found


def opened(**environment: str) -> Exporters:
    exporters = Exporters("one", environment)
    exporters.open()
    return exporters


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, []),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, ["MeterProvider"]),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9"}, ["TracerProvider"]),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, ["TracerProvider", "MeterProvider"]),
        ({"OTEL_TRACES_EXPORTER": "console"}, ["TracerProvider"]),
    ],
)
def test_variables_choose_what_is_exported(
    chosen: list[object], environment: dict[str, str], expected: list[str]
) -> None:
    opened(**environment)
    try:
        assert [type(each).__name__ for each in chosen] == expected
    finally:
        for each in chosen:
            each.shutdown()  # type: ignore[attr-defined]


def test_process_of_opentelemetry_instrument_is_left_alone(
    chosen: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        sys.modules, "opentelemetry.instrumentation.auto_instrumentation", ModuleType("auto_instrumentation")
    )
    assert not opened(OTEL_TRACES_EXPORTER="console", OTEL_METRICS_EXPORTER="prometheus").scraped
    assert chosen == []


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "cannot export traces: opentelemetry.exporter.otlp.proto.grpc is not installed",
        ),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
            "cannot export traces: OTEL_EXPORTER_OTLP_PROTOCOL has to be one of http/protobuf, grpc",
        ),
        ({"OTEL_METRICS_EXPORTER": "statsd"}, "unknown exporter in OTEL_METRICS_EXPORTER"),
    ],
)
def test_exporter_that_cannot_be_had_is_reported_in_one_sentence(
    chosen: list[object], caplog: pytest.LogCaptureFixture, environment: dict[str, str], line: str
) -> None:
    opened(**environment)
    assert line in caplog.text
    assert chosen == []


@pytest.mark.parametrize(("attributes", "instance"), [("", "one"), ("service.instance.id=mine", "mine")])
def test_process_has_a_name_of_its_own_unless_the_environment_has_one(
    chosen: list[object], monkeypatch: pytest.MonkeyPatch, attributes: str, instance: str
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", attributes)
    opened(OTEL_TRACES_EXPORTER="console", OTEL_RESOURCE_ATTRIBUTES=attributes)
    [provider] = chosen
    assert provider.resource.attributes["service.instance.id"] == instance  # type: ignore[attr-defined]
