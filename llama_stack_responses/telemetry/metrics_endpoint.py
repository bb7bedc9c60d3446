"""The port that Prometheus scrapes: the metrics of this process, and of those beside it.

Several processes behind one port have one port for metrics too. One of them serves it; if it ends, another one does. In
a scrape, each value has the label `process` with the number of its process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, Final

from ..logs import get_logger

logger = get_logger(__name__)

_PORT: Final = "9464"
"""The standard port of OpenTelemetry's exporter."""

type Texts = Mapping[int, str]
"""The metrics of processes in Prometheus's text format, by the number of the process."""


class MetricsEndpoint:
    """The endpoint of the whole set of processes, if this process serves it.

    Args:
        number: returns the number of this process; None if it is the only one.
        others: returns the metrics of the other processes. It is called in a thread.
        environment: has the address, in the standard variables.

    Attributes:
        serves: whether this process serves it.
    """

    def __init__(
        self,
        number: Callable[[], int | None],
        others: Callable[[], Texts],
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._number = number
        self._others = others
        self._host = environment.get("OTEL_EXPORTER_PROMETHEUS_HOST") or "localhost"
        self._port = environment.get("OTEL_EXPORTER_PROMETHEUS_PORT") or _PORT
        self._server: Any = None

    @property
    def serves(self) -> bool:
        """Whether this process serves it."""
        return self._server is not None

    def open(self) -> None:
        """Serve it, if no other process does.

        Raises:
            OSError: the port is taken.
            ValueError: the port is not a number.
        """
        client = import_module("prometheus_client")
        registry = client.CollectorRegistry(auto_describe=False)
        registry.register(self)
        self._server, _ = client.start_http_server(int(self._port), self._host, registry)
        logger.info("serving metrics on port %s", self._port)

    def close(self) -> None:
        """Serve it no longer."""
        if server := self._server:
            self._server = None
            server.shutdown()
            server.server_close()

    def collect(self) -> Iterable[Any]:
        """Yield the metrics of all processes, as `prometheus_client` wants them of a collector."""
        number = self._number()
        if number is None:
            yield from import_module("prometheus_client").REGISTRY.collect()
        else:
            yield from merged({number: own_metrics(), **self._others()})


def own_metrics() -> str:
    """Return the metrics of this process in Prometheus's text format."""
    client = import_module("prometheus_client")
    text: bytes = client.generate_latest(client.REGISTRY)
    return text.decode()


def merged(texts: Texts) -> Iterable[Any]:
    """Yield the metrics of several processes, each value with the number of its process.

    They are not summed: the counters of a process that has ended would be missing in the next sum, which Prometheus
    would take for a restart of all.
    """
    core, parser = import_module("prometheus_client.metrics_core"), import_module("prometheus_client.parser")
    families: dict[str, Any] = {}
    for number, text in sorted(texts.items()):
        for found in parser.text_string_to_metric_families(text):
            family = families.setdefault(found.name, core.Metric(found.name, found.documentation, found.type))
            for sample in found.samples:
                family.add_sample(sample.name, {**sample.labels, "process": str(number)}, sample.value)
    yield from families.values()
