"""A model of `Records` that every backend has to match."""

from __future__ import annotations

from collections.abc import Sequence

from llama_stack_responses.store.records import Condition, Delete, Empty, Notify, Op, Put, Record


class Model:
    """`Records` as a dict, written for simplicity only."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[Record, float | None]] = {}
        self.now = 0.0

    def live(self) -> dict[str, Record]:
        rows = sorted(self.rows.items())
        return {key: record for key, (record, expires_at) in rows if expires_at is None or expires_at > self.now}

    def failed(self, conditions: Sequence[Condition]) -> list[Condition]:
        live = self.live()

        def holds(condition: Condition) -> bool:
            if isinstance(condition, Empty):
                return not [key for key in live if key.startswith(condition.prefix) and key != condition.but]
            return (live[condition.key].version if condition.key in live else None) == condition.version

        return [condition for condition in conditions if not holds(condition)]

    def apply(self, op: Op) -> None:
        if isinstance(op, Notify):
            return
        old = self.live().get(op.key)
        if isinstance(op, Delete):
            self.rows.pop(op.key, None)
        elif isinstance(op, Put) or old is None:
            self.rows[op.key] = (Record(op.value, old.version + 1 if old else 1), op.expires_at)

    def commit(self, ops: Sequence[Op], conditions: Sequence[Condition]) -> bool:
        """Return whether the commit was applied."""
        if self.failed(conditions):
            return False
        for op in ops:
            self.apply(op)
        return True
