"""Certificates for tests, created with trustme: an authority, a server on 127.0.0.1 and for names, and a client."""

import ssl
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest
import trustme


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files in one folder: `ca.pem`, and `NAME.pem` with `NAME.key` for `server` and `client`."""

    folder: Path

    @classmethod
    def create_in(cls, folder: Path, names: Sequence[str] = (), *, address: str | None = "127.0.0.1") -> Self:
        """Create certificates of a new authority, for the address (unless None) and these names."""
        folder.mkdir(parents=True, exist_ok=True)
        authority = trustme.CA()
        authority.cert_pem.write_to_path(folder / "ca.pem")
        for name in ("server", "client"):
            certificate = authority.issue_cert(*([address] if address else []), *names)
            certificate.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
            certificate.private_key_pem.write_to_path(folder / f"{name}.key")
        return cls(folder)

    def path(self, name: str) -> str:
        """Return the path of one of the files."""
        return str(self.folder / name)

    def of_server(self, *, wants_client: bool = False) -> ssl.SSLContext:
        """Return the TLS context of the server."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.path("server.pem"), self.path("server.key"))
        if wants_client:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.path("ca.pem"))
        return context


def contexts_noted(patch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the thread of each context that a client makes from now on."""
    make, threads = ssl.create_default_context, list[int]()

    def noted(*given: Any, **named: Any) -> ssl.SSLContext:
        threads.append(threading.get_ident())
        return make(*given, **named)

    patch.setattr(ssl, "create_default_context", noted)
    return threads
