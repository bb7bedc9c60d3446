"""The notifications that PostgreSQL records send in the background."""

from __future__ import annotations

from collections.abc import Sequence

from llama_stack_responses.store.postgres_pubsub import NotificationSender


async def test_close_sends_pending_notifications_and_ends_while_others_arrive() -> None:
    sent: list[str] = []

    async def notify(names: Sequence[str]) -> None:
        sent.extend(names)
        if len(sent) < 50:
            sender.send([f"later {len(sent)}"])

    sender = NotificationSender(notify)
    sender.send(["first", "second"])
    await sender.close()
    assert sent == ["first", "second"]
    sender.send(["next"])
    await sender.close()
    assert sent == ["first", "second", "next"]
