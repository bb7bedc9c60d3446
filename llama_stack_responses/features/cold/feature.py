"""Packs idle responses, if the stack has the setting `archive`."""

from __future__ import annotations

from ...feature import Feature, Stack
from ...store.records import unmoved
from .settings import SETTINGS


def open_feature(stack: Stack) -> Feature:
    """Return what packs; without the setting, what logs that packed responses cannot be read."""
    settings, records = SETTINGS.of(stack.config), unmoved(stack.records)
    if settings is None:
        from .missing_setting import MissingSetting

        check = MissingSetting(records)
        return Feature(start=check.start, close=check.stop)
    from .objects import Objects
    from .packing import Packing

    packing = Packing(records, Objects(settings, records), settings.after_hours * 3600, stack.telemetry)
    return Feature(start=packing.start, close=packing.stop)
