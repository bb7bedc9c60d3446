"""A live stack with two users, which may reach this machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import openai

from tests.support.auth import auth_server
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.upstream import UpstreamProcess
from tests.support.variants import Json, open_this_machine, variant

TOKENS: Final = {name: f"token-of-{name}" for name in ("ada", "bob")}
PROVIDER_DATA: Final = {"llama_stack": "X-LlamaStack-Provider-Data", "ogx": "X-OGX-Provider-Data"}


@contextmanager
def user_stack(
    host: Host,
    env: Mapping[str, str],
    upstream_process: UpstreamProcess,
    folder: Path,
    change: Callable[[Json], None],
) -> Iterator[LiveStack]:
    """Run the stack of the starter template with users, on a model server that tests script.

    Args:
        host: which host runs.
        env: environment variables.
        upstream_process: the model server.
        folder: where its configuration and its state are.
        change: changes the configuration further.
    """
    with auth_server({token: {"principal": name, "attributes": {}} for name, token in TOKENS.items()}) as url:

        def changed(config: Json) -> None:
            open_this_machine(config)
            config["server"]["auth"] = {"provider_config": {"type": "custom", "endpoint": url}}
            change(config)

        config = variant(STARTER, folder / "config.yaml", changed)
        env = {**env, "INFERENCE_URL": upstream_process.client.base_url}
        with LiveStack(config, env, folder / "state", host=host) as live:
            yield live


def client_of(stack: LiveStack, name: str) -> openai.OpenAI:
    """Return a client of a user, which does not repeat requests."""
    return openai.OpenAI(base_url=f"{stack.base_url}/v1", api_key=TOKENS[name], max_retries=0)


def own_key(host: Host, key: str) -> dict[str, str]:
    """Return the header that carries a user's own key for the model server."""
    return {PROVIDER_DATA[host]: json.dumps({"openai_chat_api_key": key})}
