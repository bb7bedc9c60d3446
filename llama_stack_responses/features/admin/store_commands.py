"""The commands that read a store, and those that delete and export."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from io import TextIOWrapper
from itertools import batched
from typing import Any, Final, TextIO

from ...chat.profile import entry_of
from ...commands.audited import record_command
from ...commands.command_error import CommandError
from ...commands.host_data import OpenHostData
from ...commands.opened_store import with_store
from ...commands.progress import ProgressLine
from ...commands.tables import duration, moment, print_fields, print_json, print_rows
from ...concurrency.tasks import gather_or_cancel
from ...config import ResponsesConfig
from ...core.discovery import features_with, modules_of_features
from ...core.errors import ApiError
from ...core.owner import Owner
from ...core.types import Json
from ...store.archive import Archive
from ...store.audit_log import AuditLog, name_of, wanted_entries
from ...store.clock import StoreClock
from ...store.codec import UnreadableError
from ...store.conversation_store import Conversation
from ...store.feature_store import NotDeleted, OwnedObjects
from ...store.learned_adaptations import LearnedSteps
from ...store.records import Records
from ...store.retention import Counts, Horizon, Retention
from ...store.sweep_guard import SweepGuard, conversation_guard
from .follow import ChangeFollower
from .new_file import new_file, refuse_existing
from .store_view import StoreView, owner_fields

type Failures = Sequence[tuple[OwnedObjects, NotDeleted]]
"""What could not be deleted: the kind of each object, and why."""

_MAX_CONCURRENT_DELETES: Final = 8

_COLUMNS: Final = {
    "id": "RESPONSE",
    "created": "CREATED",
    "status": "STATUS",
    "model": "MODEL",
    "owner": "OWNER",
    "tokens": "TOKENS",
    "words": "INPUT",
}
_CHAIN: Final = {name: title for name, title in _COLUMNS.items() if name != "owner"} | {"answer": "ANSWER"}
_QUEUE: Final = {"id": "RESPONSE", "state": "STATE", "waited": "WAITED", "owner": "OWNER", "worker": "WORKER"}
_ENTRIES: Final = {
    "at": "AT",
    "type": "ACT",
    "outcome": "OUTCOME",
    "actor": "WHO",
    "from": "FROM",
    "id": "OBJECT",
}


def list_responses(arguments: Namespace) -> None:
    """Run `list`: the newest responses of all owners, or of one."""

    owner = _owner(arguments)

    async def work(records: Records, _: ResponsesConfig) -> None:
        rows = await StoreView(records).newest(arguments.limit, owner, _wanted(arguments))
        print_rows([_row(row, arguments) for row in rows], _COLUMNS, as_json=arguments.json)

    with_store(arguments, work)


def show(arguments: Namespace) -> None:
    """Run `show`: one response with its owner and its whole input."""

    async def work(records: Records, _: ResponsesConfig) -> None:
        response = await StoreView(records).show(arguments.id)
        if response is None:
            raise CommandError(f"There is no response {arguments.id!r} in this store.")
        if arguments.json:
            print_json(response)
        else:
            # ASCII only: what is stored may contain characters that control a terminal.
            print(json.dumps(response, indent=2, ensure_ascii=True))

    with_store(arguments, work)


def chain(arguments: Namespace) -> None:
    """Run `chain`: a response and those that it continues."""

    async def work(records: Records, _: ResponsesConfig) -> None:
        rows = await StoreView(records).chain(arguments.id)
        if not rows:
            raise CommandError(f"There is no response {arguments.id!r} in this store.")
        print_rows([_row(row, arguments) for row in rows], _CHAIN, as_json=arguments.json)

    with_store(arguments, work)


def tail(arguments: Namespace) -> None:
    """Run `tail`: the newest responses, and then those that are new or change, until it is interrupted."""

    owner = _owner(arguments)

    async def work(records: Records, _: ResponsesConfig) -> None:
        follower, filters = ChangeFollower(records, owner), _wanted(arguments)
        head, pause = True, arguments.every
        rows = await follower.first(arguments.limit, filters)
        while True:
            if rows or head:
                print_rows([_row(row, arguments) for row in rows], _COLUMNS, as_json=arguments.json, head=head)
                sys.stdout.flush()
            await asyncio.sleep(pause)
            head, began = False, time.monotonic()
            rows = await follower.changed(filters)
            # Polls of a busy store take at most a fifth of the time.
            pause = max(arguments.every, 4 * (time.monotonic() - began))

    with_store(arguments, work)


def stats(arguments: Namespace) -> None:
    """Run `stats`: how much is stored and queued."""

    async def work(records: Records, _: ResponsesConfig) -> None:
        counts = await StoreView(records).stats()
        dates = {} if arguments.json else {name: moment(counts[name]) for name in ("oldest", "newest")}
        print_fields(counts | dates, as_json=arguments.json)

    with_store(arguments, work)


def queue(arguments: Namespace) -> None:
    """Run `queue`: the jobs that wait and run."""

    async def work(records: Records, _: ResponsesConfig) -> None:
        rows = [
            {
                "id": each.response_id,
                "state": each.state,
                "waited": each.seconds if arguments.json else duration(each.seconds),
                "owner": _named(each.owner, arguments),
                "worker": each.worker,
            }
            for each in await StoreView(records).queue()
        ]
        print_rows(rows, _QUEUE, as_json=arguments.json)

    with_store(arguments, work)


def profiles(arguments: Namespace) -> None:
    """Run `profiles`: what was learned about model servers, as entries of the setting `profiles`."""

    async def work(records: Records, _: ResponsesConfig) -> None:
        now = await records.now()
        async for __, learned in LearnedSteps(records).all():
            for model in dict.fromkeys([*learned.steps, *learned.evidence]):
                if not (changes := entry_of(learned.changes(model, now))):
                    continue  # What was learned of a single schema has no entry.
                # JSON is YAML, and ASCII: the name of a model may contain characters that control a terminal.
                entry = json.dumps({"match": model, **changes})
                print(entry if arguments.json else f"- {entry}")

    with_store(arguments, work)


def audit(arguments: Namespace) -> None:
    """Run `audit`: the newest entries of the audit log."""
    owner = _owner(arguments)

    async def work(records: Records, settings: ResponsesConfig) -> None:
        log = AuditLog(records, settings.roles.audit_seconds)
        wanted = wanted_entries(actor=arguments.actor, act=arguments.type, owner=owner, tenant=None)
        found = [each async for each in _first(log.entries(wanted), arguments.limit)]
        print_rows(found if arguments.json else list(map(_entry, found)), _ENTRIES, as_json=arguments.json)

    with_store(arguments, work)


async def _first[Value](values: AsyncIterator[Value], count: int) -> AsyncIterator[Value]:
    async for each in values:
        yield each
        count -= 1
        if count == 0:
            return


def _entry(entry: Json) -> Json:
    actor = entry["actor"]
    session, command = actor.get("session") or {}, actor.get("command") or {}
    return {
        "at": moment(entry["effective_at"]),
        "type": entry["type"],
        "outcome": entry["outcome"],
        "actor": name_of(actor)[0],
        "from": session["forwarded_for"] or session["ip_address"] if session else command["machine"],
        "id": entry["resource"]["id"],
    }


def delete(arguments: Namespace) -> None:
    """Run `delete`: single responses, or everything of an owner."""
    owner = _owner(arguments)
    if bool(arguments.ids) == bool(owner):
        raise CommandError("Name the responses to delete, or an --owner, and not both.", 2)
    alone = [each for each in features_with("on_request") if getattr(arguments, each) and owner is None]
    if alone:
        raise CommandError(f"The option --{alone[0]} needs an --owner.", 2)

    async def work(records: Records, settings: ResponsesConfig) -> None:
        view = StoreView(records)
        ids = [*dict.fromkeys(arguments.ids)] or [each async for each in view.responses_of(owner or Owner())]
        talks = [each.id async for each in view.conversations_of(owner)] if owner else []
        async with _objects(arguments, records, view, owner, settings) as stores:
            more = {store: [each async for each in store.ids_of(owner)] if owner else [] for store in stores}
            found = {"responses": ids, "conversations": talks} | {store.name: each for store, each in more.items()}
            if not arguments.yes:
                _refuse_missing([each for each in arguments.ids if not await view.archive.entry(each)])
                counted = _listed([f"{len(each)} {name}" for name, each in found.items()])
                raise CommandError(f"This deletes {counted}: repeat it with --yes.", 2)
            for each in [""] if owner else [each for each in ids if await view.archive.entry(each)]:
                await record_command(records, settings, "owner.deleted" if owner else "response.deleted", each, owner)
            missing, failed = await _delete(view, owner, ids, talks, more)
        left = Counter({"responses": len(missing)}) + Counter(store.name for store, _ in failed)
        counts = {f"deleted {what}": len(each) - left[what] for what, each in found.items()}
        print_fields(counts, as_json=arguments.json)
        _refuse_missing([each for each in arguments.ids if each in missing])
        if failed:
            reasons = " ".join(str(error) for _, error in failed)
            raise CommandError(f"{reasons} All else is deleted. Repeat the command once the host can delete this.")

    with_store(arguments, work)


async def _delete(
    view: StoreView,
    owner: Owner | None,
    responses: Sequence[str],
    conversations: Sequence[str],
    more: Mapping[OwnedObjects, Sequence[str]],
) -> tuple[set[str], Failures]:
    """Delete responses and conversations, some at a time, and more objects.

    Args:
        more: the ids of what features and the host keep for the owner.

    Returns:
        The unknown responses, and what could not be deleted.
    """
    missing = set[str]()
    failed: Failures = ()

    async def one(response_id: str) -> None:
        if not await view.delete(response_id):
            missing.add(response_id)
        progress.add()

    async def conversation(conversation_id: str) -> None:
        await view.archive.conversations.delete(conversation_id)
        progress.add()

    total = len(responses) + len(conversations) + sum(map(len, more.values()))
    with ProgressLine(f"{_kinds(more)} deleted", total) as progress:
        for some in batched(responses, _MAX_CONCURRENT_DELETES):
            await gather_or_cancel(map(one, some))
        for some in batched(conversations, _MAX_CONCURRENT_DELETES):
            await gather_or_cancel(map(conversation, some))
        if owner:
            failed = await _delete_objects(owner, more, progress)
            await view.forget(owner)
            for store in view.archive.of_features:
                await store.forget(owner)
    return missing, failed


async def _delete_objects(owner: Owner, more: Mapping[OwnedObjects, Sequence[str]], progress: ProgressLine) -> Failures:
    """Delete objects, and return those that could not be."""
    failed = list[tuple[OwnedObjects, NotDeleted]]()
    for store, ids in more.items():
        for each in ids:
            try:
                await store.delete(owner, each)
            except NotDeleted as error:
                failed.append((store, error))
            except ApiError as error:
                if error.status != 404:  # it may have been deleted, or have expired, meanwhile
                    raise
            progress.add()
    return failed


@asynccontextmanager
async def _objects(
    arguments: Namespace, records: Records, view: StoreView, owner: Owner | None, settings: ResponsesConfig
) -> AsyncIterator[list[OwnedObjects]]:
    """Yield what features keep for users, and for an owner what the host keeps; say what is left."""
    if owner is None:
        yield [*view.archive.of_features]
        return
    opened: OpenHostData = arguments.open_host_data
    async with opened(arguments.config, owner) as host:
        for sentence in host.left:
            print(sentence, file=sys.stderr)
        yield [*view.archive.of_features, *host.kinds, *_asked_for(arguments, records, view, settings)]


def _asked_for(
    arguments: Namespace, records: Records, view: StoreView, settings: ResponsesConfig
) -> Iterator[OwnedObjects]:
    """Yield what is only taken by the option with the name of its feature."""
    for name, module in modules_of_features("on_request").items():
        if getattr(arguments, name):
            yield module.open_on_request(records, view.archive.decoder, settings)


def sweep(arguments: Namespace) -> None:
    """Run `sweep`: delete all expired responses and conversations, also those that the servers hold back."""

    async def work(records: Records, settings: ResponsesConfig) -> None:
        archive, clock = Archive(records, retention=settings.retention_seconds), StoreClock(records)
        now = await clock.read()
        if clock.is_wrong:
            raise CommandError(
                f"The clocks of this machine and of the store differ by {abs(clock.difference):.0f} seconds: correct "
                "the wrong one first."
            )
        horizon, unused = archive.horizon(now), _horizon_of_conversations(arguments, settings, now)
        expired, stored = await archive.count(horizon)
        talks = await archive.conversations.count(unused.oldest) if unused else Counts(0, 0)
        if (expired or talks.expired) and not arguments.yes:
            counted = f"{expired} of {stored} responses, those created before {_oldest(horizon)}"
            if unused:
                counted += f", and {talks.expired} of {talks.stored} conversations, unchanged since {_oldest(unused)}"
            raise CommandError(
                f"This deletes {counted} (it is {moment(now)} now by the store's clock): repeat it with --yes.", 2
            )
        deleted = {"deleted responses": await _swept(archive, horizon, expired)}
        await SweepGuard(records, archive.count, settings.max_swept_share).went(horizon)
        if unused:
            deleted["deleted conversations"] = await archive.conversations.expire(unused.oldest)
            await conversation_guard(records, archive.conversations, settings.max_swept_share).went(unused)
        print_fields(deleted, as_json=arguments.json)

    with_store(arguments, work)


async def _swept(archive: Archive, horizon: Horizon, expired: int) -> int:
    """Delete expired responses, and return their number."""
    deleted = 0
    with ProgressLine("responses deleted", expired) as progress:
        while some := await archive.sweep(horizon):
            deleted += some
            progress.add(some)
    return deleted


def _horizon_of_conversations(arguments: Namespace, settings: ResponsesConfig, now: float) -> Horizon | None:
    """Return how far to delete conversations; None if they are kept until they are deleted."""
    days: float | None = arguments.conversation_days or settings.conversation_retention_days
    return None if days is None else Retention(days * 86_400, time.time).horizon(now)


def _oldest(horizon: Horizon) -> str | None:
    return moment(int(horizon.oldest, 16))


def _refuse_missing(ids: list[str]) -> None:
    if ids:
        raise CommandError(f"Not stored, or still in progress: {', '.join(ids)}.")


def export(arguments: Namespace) -> None:
    """Run `export`: everything of an owner, as lines of JSON."""
    owner = _owner(arguments)
    if owner is None:
        raise CommandError("Name the --owner whose data to export.", 2)

    async def work(records: Records, settings: ResponsesConfig) -> None:
        await record_command(records, settings, "owner.exported", owner=owner)
        view = StoreView(records)
        async with _objects(arguments, records, view, owner, settings) as stores:
            if arguments.out is None:
                lacks = await _export(view, stores, owner, sys.stdout)
            else:
                with new_file(arguments.out) as file:
                    out = TextIOWrapper(file, encoding="utf-8")
                    lacks = await _export(view, stores, owner, out)
                    out.flush()
                    out.detach()
        if lacks:
            raise CommandError(f"The export has all but what is damaged or missing of: {', '.join(lacks)}.")

    if arguments.out is not None:
        refuse_existing(arguments.out)
    with_store(arguments, work)


async def _export(view: StoreView, stores: Sequence[OwnedObjects], owner: Owner, out: TextIO) -> list[str]:
    """Write all lines; return the ids of the responses and conversations of which damaged content is missing."""
    lacks = list[str]()
    with ProgressLine(f"{_kinds(stores)} exported") as progress:
        async for response_id in view.responses_of(owner):
            try:
                if response := await view.show(response_id):
                    out.write(json.dumps({"type": "response", **response}) + "\n")
            except UnreadableError:
                lacks.append(response_id)
            progress.add()
        lacks += await _export_conversations(view, owner, out, progress)
        for store in stores:
            await _export_objects(store, owner, out, progress)
    return lacks


async def _export_conversations(view: StoreView, owner: Owner, out: TextIO, progress: ProgressLine) -> list[str]:
    """Write conversations, each with its items up to one that is damaged; return the ids of those that have such."""
    lacks = list[str]()

    async def readable(conversation: Conversation) -> AsyncIterator[Json]:
        try:
            async for item in view.items_of(conversation):
                yield item
        except UnreadableError:
            lacks.append(conversation.id)

    async for conversation in view.conversations_of(owner):
        fields = {"id": conversation.id, "created_at": conversation.created_at, "metadata": dict(conversation.metadata)}
        line = {"type": "conversation", "owner": owner_fields(conversation.owner), "conversation": fields}
        await _write_line(out, line, "items", readable(conversation))
        progress.add()
    return lacks


async def _export_objects(store: OwnedObjects, owner: Owner, out: TextIO, progress: ProgressLine) -> None:
    async for each in store.export(owner):
        line = {"type": each.type, "owner": owner_fields(each.owner), each.type: each.fields}
        await _write_line(out, line, each.members, each.each)
        progress.add()


async def _write_line(out: TextIO, line: Json, name: str, members: AsyncIterator[Json]) -> None:
    """Write a line with an array of this name. Its members may be many, and are written as they come."""
    out.write(f'{json.dumps(line)[:-1]}, "{name}": [')
    separator = ""
    async for member in members:
        out.write(separator + json.dumps(member))
        separator = ", "
    out.write("]}\n")


def _kinds(stores: Iterable[OwnedObjects]) -> str:
    """Name what a user may have."""
    return _listed(["responses", "conversations", *(store.name for store in stores)])


def _listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _owner(arguments: Namespace) -> Owner | None:
    """Return the owner that is named; an empty name is the owner of a stack without authentication.

    Raises:
        CommandError: only a tenant is named.
    """
    if arguments.owner is None and arguments.tenant:
        raise CommandError("The option --tenant needs an --owner.", 2)
    return None if arguments.owner is None else Owner(arguments.owner, tenant=arguments.tenant)


def _wanted(arguments: Namespace) -> Callable[[Json], bool]:
    filters = {name: value for name in ("status", "model") if (value := getattr(arguments, name)) is not None}
    return lambda row: all(row[name] == value for name, value in filters.items())


def _row(row: Json, arguments: Namespace) -> Json:
    """Return the visible fields of a list's row."""
    if arguments.json:
        return {name: value for name, value in row.items() if name != "version"} | {"owner": owner_fields(row["owner"])}
    counts = [str(row[name]) for name in ("input_tokens", "output_tokens") if row[name] is not None]
    return row | {
        "created": moment(row["created_at"]),
        "owner": _named(row["owner"], arguments),
        "tokens": "+".join(counts) or None,
    }


def _named(owner: Owner, arguments: Namespace) -> Any:
    if arguments.json:
        return owner_fields(owner)
    return f"{owner.principal} ({owner.tenant})" if owner.tenant else owner.principal or None
