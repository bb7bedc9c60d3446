"""Puts the object store behind the store."""

from __future__ import annotations

from pydantic import BaseModel

from ...config.stores import HostStore, MemoryStore
from ...core.setting_values import WrongConfiguration
from ...store.records import Records
from ...telemetry.instrumentation import Telemetry
from .settings import NO_PACKAGE, SETTINGS
from .unconfigured import UnconfiguredRecords, open_unconfigured


def open_tier(records: Records, config: BaseModel, telemetry: Telemetry | None) -> Records:
    """Return records that bring back what is packed.

    Without the setting, a server or a command says what it cannot read.

    Raises:
        WrongConfiguration: the setting cannot be used, or not with this store.
    """
    settings = SETTINGS.of(config)
    if not records.transactional or isinstance(getattr(config, "store", None), HostStore | MemoryStore):
        _refuse(settings is not None)
        return records
    if settings is None:
        return UnconfiguredRecords(records, telemetry) if telemetry else open_unconfigured(records, None)
    from .bringing import Bringing
    from .unpacking_records import UnpackingRecords

    try:
        from .objects import Objects
    except ImportError as error:
        raise WrongConfiguration(NO_PACKAGE) from error
    objects = Objects(settings, records)
    return UnpackingRecords(records, Bringing(records, objects, settings.after_hours * 3600, telemetry))


def _refuse(is_set: bool) -> None:
    if is_set:
        raise WrongConfiguration("'archive' needs a store that all servers share: sqlite, redis, cluster or postgres.")
