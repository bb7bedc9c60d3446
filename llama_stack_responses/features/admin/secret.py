"""The command `secret`."""

from __future__ import annotations

from argparse import Namespace
from base64 import b64encode

from ...commands.command_error import CommandError
from ...commands.opened_store import with_store
from ...commands.tables import print_json
from ...config import ResponsesConfig
from ...store.factory import secret_keeper
from ...store.records import Records


def secret(arguments: Namespace) -> None:
    """Run `secret`: print the secret that the store keeps, as the setting `secrets` takes it."""

    async def work(records: Records, settings: ResponsesConfig) -> None:
        kept = await secret_keeper(settings.store, records).read()
        if kept is None:
            raise CommandError(
                "This store keeps no secret: a server makes it with its first request if no 'secrets' are configured."
            )
        text = b64encode(kept).decode()
        if arguments.json:
            print_json({"secret": text})
        else:
            print(text)

    with_store(arguments, work)
