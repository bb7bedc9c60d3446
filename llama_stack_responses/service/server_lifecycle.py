"""Start and shutdown of this server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from ..concurrency.fair_threads import FairThreads
from ..concurrency.offloading import in_own_thread, shorten_switch_interval
from ..config import ResponsesConfig
from ..generation.dependencies import Dependencies
from ..jobs.background import BackgroundJobs
from ..lifecycle.file_limit import raise_file_limit
from ..lifecycle.periodic import Periodic
from ..lifecycle.shutdown import ShutdownCoordinator
from ..lifecycle.signals import Connections, install_signal_handlers
from ..telemetry.exporters import Exporters
from ..telemetry.gauges import GaugeSources
from ..telemetry.instrumentation import Telemetry
from ..telemetry.loop_monitor import EventLoopMonitor
from .foreground_responses import ForegroundResponses
from .process_set import ProcessSet

_FLUSH_SECONDS: Final = 2.0
"""Time for which a server that stops waits until its last spans and metrics are sent."""


class ServerLifecycle:
    """Starts the tasks of this server, and ends what runs when the server stops.

    Args:
        config: the provider's configuration.
        jobs: the detached responses.
        foreground: the foreground responses.
        dependencies: the services of the stack.
        periodic: what is done at intervals.
        telemetry: shows the gauges, and how long the event loop is held.
        gauge_sources: the sources of the gauges.
        processes: this process and those beside it.

    Attributes:
        shutdown: notifies open connections of the shutdown.
    """

    def __init__(
        self,
        config: ResponsesConfig,
        jobs: BackgroundJobs,
        foreground: ForegroundResponses,
        dependencies: Dependencies,
        periodic: Sequence[Periodic],
        telemetry: Telemetry,
        gauge_sources: GaugeSources,
        processes: ProcessSet,
    ) -> None:
        self._config = config
        self._jobs = jobs
        self._foreground = foreground
        self._features = dependencies.features
        self._periodic = periodic
        self._telemetry = telemetry
        self._gauge_sources = gauge_sources
        self._processes = processes
        self._exporters = Exporters(jobs.live_responses.server)
        self.shutdown = ShutdownCoordinator()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._monitor: EventLoopMonitor | None = None
        self._connections: Connections | None = None

    def start(self) -> bool:
        """Start the background tasks in the running event loop; return False if that was done before."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return False
        self._loop = loop
        self._exporters.open()
        loop.set_default_executor(FairThreads())
        shorten_switch_interval()
        if self._config.host_shortcuts:
            raise_file_limit(self._config.limits.answers.streams)
        for task in self._periodic:
            task.start()
        self._jobs.start()
        for feature in self._features:
            feature.start()
        if threshold := self._config.loop_hold_seconds:
            self._monitor = self._telemetry.monitor_loop(threshold)
        self._telemetry.show(self._gauge_sources)
        self._connections = install_signal_handlers(
            self._on_signal, self._config.flush_seconds, self._finish, self._config.leave_seconds
        )
        self._processes.start(self._connections.processes, scraped=self._exporters.scraped)
        return True

    async def stop(self) -> None:
        """Stop the background tasks."""
        if self._monitor:
            self._monitor.stop()
        for task in self._periodic:
            await task.stop()
        await self._jobs.worker.stop()
        await self._jobs.live_responses.stop()
        await self._processes.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_SECONDS):
                await in_own_thread(self._exporters.flush)

    def abort_connection(self, scope: Mapping[str, Any]) -> None:
        """Abort the connection of a request, identified by its ASGI scope, without waiting for the client."""
        if self._connections:
            self._connections.abort(scope)

    def _finish(self) -> asyncio.Future[None] | None:
        """Stop claiming jobs, and let foreground responses finish."""
        self._jobs.worker.retire()
        connections = self._connections
        return self._foreground.finishing.begin(lambda: connections.requesting if connections else 0)

    def _on_signal(self) -> asyncio.Future[None] | None:
        self._foreground.shut_down()
        # The host may stop its inference providers before this one, which would fail the jobs that run.
        self._jobs.worker.hand_over()
        self._jobs.events.close()
        return self.shutdown.begin()
