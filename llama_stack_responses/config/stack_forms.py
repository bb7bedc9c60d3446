"""The forms that the hosts expect of a stack's configuration; they describe another one in pydantic's words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from .stack_file import substituted

_MOST_WORKERS: Final = 256
"""Server processes of one server: more than that are a slip, and would take all memory before they answer."""

type _WrongForm = tuple[list[int | str], str]
"""A place in the file, and what is expected there."""


def wrong_forms(stack: Any, environment: Mapping[str, str]) -> Iterator[_WrongForm]:
    """Yield each place of another form, with what is expected there. What is missing is left to the host.

    Args:
        stack: the content of the file.
        environment: what its `${env.NAME}` are replaced by.
    """
    if not isinstance(stack, dict):
        return
    yield from _server_forms(stack.get("server"), environment)
    providers = stack.get("providers", {})
    if not isinstance(providers, dict):
        yield ["providers"], "a mapping is expected here, of each API to the list of its providers"
        return
    for api, entries in providers.items():
        if isinstance(entries, list):
            for index, entry in enumerate(entries):
                yield from _entry_forms(["providers", api, index], entry)
        else:
            yield ["providers", api], "a list is expected here, with an entry for each provider"


def _server_forms(server: Any, environment: Mapping[str, str]) -> Iterator[_WrongForm]:
    try:
        workers = substituted(server.get("workers", 1), environment) if isinstance(server, dict) else 1
    except KeyError:
        return  # the host names the variable
    if isinstance(workers, bool) or not isinstance(workers, int) or not 1 <= workers <= _MOST_WORKERS:
        yield ["server", "workers"], f"the number of server processes is expected here, from 1 to {_MOST_WORKERS}"


def _entry_forms(place: list[int | str], entry: Any) -> Iterator[_WrongForm]:
    if not isinstance(entry, dict):
        yield place, "a mapping is expected here, with 'provider_id', 'provider_type' and 'config'"
        return
    for name in ("provider_id", "provider_type"):
        if name not in entry:
            yield [*place, name], "this setting is missing"
    if not isinstance(entry.get("config") or {}, dict):
        yield [*place, "config"], "a mapping is expected here"
