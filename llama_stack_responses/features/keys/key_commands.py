"""The actions of the command `keys`."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Final

from ...commands.audited import record_command
from ...commands.command_error import CommandError
from ...commands.opened_store import with_store
from ...commands.tables import moment, print_json, print_rows
from ...config import ResponsesConfig
from ...core.owner import Owner
from ...core.types import Json
from ...store.access_keys import AccessKey, AccessKeys, NewKey, check_key_id, new_key_id, no_key
from ...store.records import Records
from .key_objects import belongs_to, key_object
from .new_key import checked
from .settings import SETTINGS

_COLUMNS: Final = {
    "id": "KEY",
    "name": "NAME",
    "owner": "OWNER",
    "team": "TEAM",
    "roles": "ROLES",
    "status": "STATUS",
    "expires": "EXPIRES",
    "used": "LAST USE",
}


def create_key(arguments: Namespace) -> None:
    """Run `keys create`: create a key, and print its token."""
    new = NewKey(
        name=arguments.name or arguments.owner,
        owner=Owner(arguments.owner, tenant=arguments.tenant),
        team=arguments.team,
        roles=arguments.roles,
        models=arguments.models,
        limits=dict(arguments.limits),
        seconds=None if arguments.days is None else arguments.days * 86_400,
    )

    async def work(records: Records, settings: ResponsesConfig) -> None:
        wanted, key_id = checked(new), new_key_id()
        await record_command(records, settings, "api_key.created", key_id, new.owner)
        key, token = await AccessKeys(records).create(wanted, key_id)
        _print_token(key, token, arguments, await records.now())
        if SETTINGS.of(settings) is None:
            print(
                "No server asks for keys yet: add 'keys: {}' and the auth of docs/guides/keys.md to the configuration.",
                file=sys.stderr,
            )

    # The first key of a store is made before its first response.
    with_store(arguments, work, new=True)


def list_key(arguments: Namespace) -> None:
    """Run `keys list`: the keys of all users, or of one, or of a team."""

    async def work(records: Records, _: ResponsesConfig) -> None:
        keys = AccessKeys(records)
        found = [each async for each in keys.all() if belongs_to(each, arguments.owner, arguments.team)]
        found.sort(key=lambda key: (key.created_at, key.id))
        uses, now = await keys.last_uses([each.id for each in found]), await records.now()
        objects = [key_object(each, uses.get(each.id), now) for each in found]
        print_rows(objects if arguments.json else [_row(each) for each in objects], _COLUMNS, as_json=arguments.json)

    with_store(arguments, work)


def rotate_key(arguments: Namespace) -> None:
    """Run `keys rotate`: give a key a new token, and print it."""

    async def work(records: Records, settings: ResponsesConfig) -> None:
        of_keys = SETTINGS.of(settings)
        hours = arguments.overlap_hours
        if hours is None:
            hours = of_keys.overlap_hours if of_keys else 24.0
        keys, key_id = AccessKeys(records), check_key_id(arguments.id)
        found, rotated = await keys.find(key_id), None
        if found and found.status(await records.now()) == "active":
            await record_command(records, settings, "api_key.updated", key_id)
            rotated = await keys.rotate(key_id, hours * 3600)
        if rotated is None:
            raise CommandError(f"There is no active key {arguments.id!r} in this store.")
        _print_token(*rotated, arguments, await records.now())

    with_store(arguments, work)


def revoke_key(arguments: Namespace) -> None:
    """Run `keys revoke`: revoke a key."""

    async def work(records: Records, settings: ResponsesConfig) -> None:
        keys = AccessKeys(records)
        key = found = await keys.find(check_key_id(arguments.id))
        if found and found.revoked_at is None:
            await record_command(records, settings, "api_key.deleted", found.id)
            key = await keys.revoke(found.id)
        if found is None or key is None:
            raise no_key(arguments.id)
        if arguments.json:
            print_json(key_object(key, None, await records.now()))
        elif found.revoked_at is not None:
            print(f"{key.id} of {key.owner.principal} was revoked already.")
        else:
            latest = f"{settings.auth_cache_seconds:g} s at the latest"
            print(f"Revoked {key.id} of {key.owner.principal}: servers refuse it in {latest}.")

    with_store(arguments, work)


def _print_token(key: AccessKey, token: str, arguments: Namespace, now: float) -> None:
    """Print a token alone on standard output, so that a shell can take it."""
    if arguments.json:
        print_json(key_object(key, None, now) | {"value": token})
        return
    print(token)
    print(f"The token of {key.id}, which is not shown again.", file=sys.stderr)


def _row(shown: Json) -> Json:
    return {
        **shown,
        "owner": shown["owner"]["name"],
        "roles": ", ".join(shown["roles"]) or None,
        "expires": moment(shown["expires_at"]),
        "used": moment(shown["last_used_at"]),
    }
