"""Opens what features put between the store and those that use it, such as an object store for idle responses."""

from __future__ import annotations

from pydantic import BaseModel

from ..core.discovery import modules_of_features
from ..telemetry.instrumentation import Telemetry
from .records import Records


def with_tiers(records: Records, config: BaseModel, telemetry: Telemetry | None = None) -> Records:
    """Return the records as the features of this installation change them: the `open_tier` of their `tier.py`.

    Args:
        records: the store.
        config: the configuration.
        telemetry: records metrics; None in commands.

    Raises:
        WrongConfiguration: a setting cannot be used with this store.
    """
    for module in modules_of_features("tier").values():
        records = module.open_tier(records, config, telemetry)
    return records
