"""Intervals and time limits that operators do not configure.

Those that operators configure are in `config/`. The interval of keep-alive comments is in `wire/sse.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Intervals:
    """Intervals and time limits of one process.

    Processes that share a store must agree on `lease_seconds`.

    Attributes:
        lease_seconds: duration of a worker's lease after its last heartbeat, on the store's clock.
        heartbeat_seconds: interval between two heartbeats.
        lease_lost_seconds: time without a heartbeat after which a worker drops its jobs: another worker may have taken
            them over.
        outage_seconds: a gap between two heartbeats on the store's clock that is not shorter indicates an outage of the
            store or a sleep of the machine, in which the leases of other running workers may have expired.
        grace_seconds: time after its start for which a worker treats no other worker as dead: the store may just have
            recovered from an outage.
        poll_seconds: interval of polls of the queue and of leases, on a store without notifications.
        fast_poll_seconds: interval of polls for a change that is expected soon, on such a store.
        event_poll_seconds: interval of polls for events that another process wrote, on such a store.
        fallback_poll_seconds: interval of polls on a store with notifications, since a notification may be lost.
        partition_look_seconds: maximum interval between two looks at all partitions of a store that has several.
        event_batch_seconds: interval between two batches of an event log; with many jobs, deltas wait up to twice as
            long.
        reservation_wait_seconds: time for which the stream of a running response waits until the user's other streams,
            which stall, have ended and leave room for its next events.
        store_retry_seconds: interval between two calls of a store that does not answer.
        reconnect_seconds: interval between two attempts to subscribe to a store's notifications.
        subscribe_delay_seconds: delay before a subscription to a name, since most waits end earlier.
        unknown_outcome_seconds: time limit for reading back the outcome of a commit whose answer was lost.
        ready_seconds: time limit of each check of readiness.
        ready_cache_seconds: time for which the result of a check of readiness holds.
        clock_check_seconds: interval of comparisons of this machine's clock with the store's.
        durability_check_seconds: interval of questions to the store whether it keeps what was committed.
        provider_check_seconds: interval of questions to the inference providers whether their model servers answer.
        integrity_check_seconds: interval of questions to the store whether its file was found damaged.
        memory_return_seconds: interval of looks at this process's memory, part of which may be returned to the system.
        certificate_check_seconds: interval of reads of the certificates that may end.
        secret_check_seconds: interval of comparisons of this server's secrets with those of the store's other servers.
        secret_row_seconds: time for which the store remembers a secret with which no server seals any longer.
        list_scan_seconds: time after which a page of a filtered list ends.
        watch_seconds: polling interval of the built-in page's lists, running responses and counts.
        watcher_poll_seconds: interval of polls for users of the built-in page, on a server that shows them nothing yet.
    """

    lease_seconds: float = 10.0
    heartbeat_seconds: float = 2.5
    lease_lost_seconds: float = 7.5
    outage_seconds: float = 5.0
    grace_seconds: float = 5.0
    poll_seconds: float = 0.5
    fast_poll_seconds: float = 0.05
    event_poll_seconds: float = 0.2
    fallback_poll_seconds: float = 5.0
    partition_look_seconds: float = 10.0
    event_batch_seconds: float = 0.05
    reservation_wait_seconds: float = 120.0
    store_retry_seconds: float = 1.0
    reconnect_seconds: float = 2.0
    subscribe_delay_seconds: float = 0.05
    unknown_outcome_seconds: float = 15.0
    ready_seconds: float = 2.0
    ready_cache_seconds: float = 1.0
    clock_check_seconds: float = 10.0
    durability_check_seconds: float = 10.0
    provider_check_seconds: float = 15.0
    integrity_check_seconds: float = 5.0
    memory_return_seconds: float = 10.0
    certificate_check_seconds: float = 3600.0
    secret_check_seconds: float = 60.0
    secret_row_seconds: float = 7 * 86_400.0
    list_scan_seconds: float = 1.0
    watch_seconds: float = 1.0
    watcher_poll_seconds: float = 2.5


DEFAULT: Final = Intervals()
