"""A server with the protocol of S3, from a wheel. What it keeps ends with it."""

import sys
from typing import Any, Final

import boto3
import httpx

from tests.support.database import DatabaseServer

BUCKET: Final = "files-of-users"
KEYS: Final = {"AWS_ACCESS_KEY_ID": "key-of-the-tests", "AWS_SECRET_ACCESS_KEY": "secret-of-the-tests"}


class S3(DatabaseServer):
    """The server, with a bucket."""

    def start(self) -> None:
        """Start the server and create the bucket."""
        super().start()
        self._client().create_bucket(Bucket=BUCKET)

    @property
    def url(self) -> str:
        """The server's URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that configure the template `postgres-s3` for this server."""
        return {"S3_URL": self.url, "S3_BUCKET": BUCKET, **KEYS}

    @property
    def archive(self) -> dict[str, str]:
        """The setting `archive` for this server's bucket."""
        return {
            "url": f"s3://{BUCKET}/cold",
            "endpoint": self.url,
            "region": "us-east-1",
            "access_key_id": KEYS["AWS_ACCESS_KEY_ID"],
            "secret_access_key": KEYS["AWS_SECRET_ACCESS_KEY"],
        }

    @property
    def objects(self) -> dict[str, bytes]:
        """What the bucket has, by key."""
        client = self._client()
        keys = [each["Key"] for each in client.list_objects_v2(Bucket=BUCKET).get("Contents", [])]
        return {key: client.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys}

    def command(self, options: tuple[str, ...]) -> list[str]:
        """Return the command line."""
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port), *options]

    def answers(self) -> bool:
        """Whether it accepts connections."""
        try:
            return httpx.get(f"{self.url}/moto-api/", timeout=10, trust_env=False).is_success
        except httpx.TransportError:
            return False

    def _client(self) -> Any:
        access = {
            "aws_access_key_id": KEYS["AWS_ACCESS_KEY_ID"],
            "aws_secret_access_key": KEYS["AWS_SECRET_ACCESS_KEY"],
        }
        return boto3.client("s3", endpoint_url=self.url, region_name="us-east-1", **access)
