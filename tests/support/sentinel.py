"""A real Sentinel that watches a Valkey and makes a replica the primary when it dies."""

from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from tests.support.database import DatabaseServer
from tests.support.valkey import Valkey, program


class Sentinel(DatabaseServer):
    """Watches `primary`, as the service `responses`; it promotes a replica after one second.

    Args:
        watched: the port under which clients reach the primary, if that is another one.
        password: the password of the Sentinel itself.
    """

    def __init__(self, folder: Path, primary: Valkey, *, watched: int | None = None, password: str = "") -> None:
        self._primary = primary
        self._watched = watched or primary.port
        super().__init__(folder, password=password)

    @property
    def url(self) -> str:
        """The URL of the store behind it."""
        return f"redis+sentinel://127.0.0.1:{self.port}/responses/0"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that configure the template `redis` for the store behind it."""
        return {"REDIS_URL": self.url}

    def command(self, options: tuple[str, ...]) -> list[str]:
        """Return the command line, and write the configuration, which the Sentinel rewrites."""
        config = self.folder / "sentinel.conf"
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self.folder}",
            f"sentinel monitor responses 127.0.0.1 {self._watched} 1",
            "sentinel down-after-milliseconds responses 1000",
            "sentinel failover-timeout responses 10000",
        ]
        if self._primary.password:
            lines.append(f"sentinel auth-pass responses {self._primary.password}")
        if self.password:
            lines.append(f"requirepass {self.password}")
        config.write_text("\n".join(lines) + "\n")
        return [program(), str(config), "--sentinel", *options]

    def answers(self) -> bool:
        """Whether it knows a replica, so that it can promote one."""
        try:
            url = (
                f"redis://:{self.password}@127.0.0.1:{self.port}" if self.password else f"redis://127.0.0.1:{self.port}"
            )
            with Redis.from_url(url, socket_timeout=10, decode_responses=True) as client:
                return len(client.sentinel_slaves("responses")) > 0
        except RedisError:
            return False
