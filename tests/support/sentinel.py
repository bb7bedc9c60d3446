"""A real Sentinel that watches a Valkey and makes a replica the primary when it dies."""

from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from tests.support.database import DatabaseServer
from tests.support.valkey import Valkey, program


class Sentinel(DatabaseServer):
    """Watches `primary`, as the service `responses`; it promotes a replica after one second."""

    def __init__(self, folder: Path, primary: Valkey) -> None:
        self._primary = primary
        super().__init__(folder)

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
            f"sentinel monitor responses 127.0.0.1 {self._primary.port} 1",
            "sentinel down-after-milliseconds responses 1000",
            "sentinel failover-timeout responses 10000",
        ]
        config.write_text("\n".join(lines) + "\n")
        return [program(), str(config), "--sentinel", *options]

    def answers(self) -> bool:
        """Whether it knows a replica, so that it can promote one."""
        try:
            with Redis.from_url(f"redis://127.0.0.1:{self.port}", socket_timeout=10, decode_responses=True) as client:
                return len(client.sentinel_slaves("responses")) > 0
        except RedisError:
            return False
