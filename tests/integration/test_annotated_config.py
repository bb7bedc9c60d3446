"""The template `annotated` on a live stack, with every block in force."""

from pathlib import Path
from sysconfig import get_path

import httpx
import pytest

from tests.support.annotated_config import TEMPLATE, uncommented
from tests.support.auth import auth_server
from tests.support.stack import Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess
from tests.support.variants import Json, variant

pytestmark = pytest.mark.live

USERS = {"token-of-ada": {"principal": "ada", "attributes": {}}}


@pytest.mark.extended
def test_annotated_template_with_every_block_in_force_serves(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, upstream: Upstream, tmp_path: Path
) -> None:
    every = tmp_path / "every.yaml"
    every.write_text(uncommented(TEMPLATE.read_text()))
    with auth_server(USERS) as endpoint:

        def change(config: Json) -> None:
            config["server"]["auth"]["provider_config"]["endpoint"] = endpoint
            # The example of a proxy, which is not there.
            del config["providers"]["inference"][0]["config"]["network"]["proxy"]
            # Keys of the server's own stand for the host's endpoint, not beside it.
            del config["providers"]["responses"][0]["config"]["keys"]

        env = {
            **stack_env,
            "HOME": str(tmp_path),
            "INFERENCE_URL": upstream_process.client.base_url,
            "WEB_SEARCH": "ddgs",
            "SEARXNG_URL": "http://localhost:8888",
            # The host counts tokens of files with vocabularies that tiktoken would download; this package has them.
            "TIKTOKEN_CACHE_DIR": str(
                Path(get_path("purelib")) / "llama_index" / "core" / "_static" / "tiktoken_cache"
            ),
        }
        config = variant(every, tmp_path / "config.yaml", change)
        with LiveStack(config, env, tmp_path / "state", host=host) as live, live.client("token-of-ada") as client:
            assert client.responses.create(model="local/echo", input="Every block").output_text == "Every block"
            listed = httpx.get(
                f"{live.base_url}/v1/providers",
                headers={"authorization": "Bearer token-of-ada"},
                timeout=60,
                trust_env=False,
                verify=False,
            ).json()["data"]
            assert {"local", "responses", "files", "ddgs", "searxng", "faiss", "pypdf"} <= {
                each["provider_id"] for each in listed
            }
    assert (tmp_path / "state" / "responses.db").exists()
