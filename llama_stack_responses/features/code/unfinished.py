"""Finishes deletions and uploads of skills that were interrupted."""

from __future__ import annotations

from ...store.decoder import Decoder
from ...store.feature_store import Finish
from ...store.records import Records
from .skills.store import SkillStore


def open_unfinished(records: Records, decoder: Decoder) -> Finish:
    """Return what deletes archives that have no version."""
    return SkillStore(records, decoder).resume
