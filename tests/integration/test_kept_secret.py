"""The secret that a store keeps: clients' sealed reasoning outlives a restart without a configured one."""

import os
import shutil
import stat
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.support.forks import Forks
from tests.support.snippets import blocks
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess, reasoning, reply, text, tool_call
from tests.support.variants import Json, responses_config, variant
from tests.support.wire import Wire, error_of, output_text

# Extended: another home folder needs processes of its own, which import the host.
pytestmark = [pytest.mark.live, pytest.mark.both_hosts, pytest.mark.extended]

NAME: Final = "thinker"
MODEL: Final = f"local/{NAME}"
QUESTION: Final = {"role": "user", "content": "think"}
TOOLS: Final = [{"type": "function", "name": "f"}]
ONE_ENTRY: Final = "docs/guides/installation.md, In a stack of your own, yaml"


def leave(_: Json) -> None:
    """Leave the template as it is."""


def one_entry(config: Json) -> None:
    """Have only the settings that the documentation gives for a stack of one's own."""
    [entry] = yaml.safe_load(next(each.text for each in blocks().values() if each.name == ONE_ENTRY))["providers"][
        "responses"
    ]
    config["providers"]["responses"] = [entry]


@pytest.fixture(scope="module")
def forks_at_home(
    host: Host, stack_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, Forks]]:
    """A home folder, and the fork server of the stacks that have it."""
    home = tmp_path_factory.mktemp("home")
    env = os.environ | stack_env | {"HOME": str(home)}
    with Forks.of_host(host, env, tmp_path_factory.mktemp("forks") / "log") as forks:
        yield home, forks


@pytest.fixture(params=[leave, one_entry], ids=["starter", "one entry"])
def stack(
    request: pytest.FixtureRequest,
    host: Host,
    stack_env: dict[str, str],
    upstream_process: UpstreamProcess,
    forks_at_home: tuple[Path, Forks],
) -> Iterator[LiveStack]:
    """A stack without a configured secret. Both kinds have their store in a folder of the home folder."""
    change: Callable[[Json], None] = request.param
    home, forks = forks_at_home
    shutil.rmtree(home)
    home.mkdir()
    env = {
        **{name: "" for name in os.environ if name.startswith("RESPONSES_SECRET")},
        **stack_env,
        "HOME": str(home),
        "INFERENCE_URL": upstream_process.client.base_url,
    }
    config = variant(STARTER, home / "config.yaml", change)
    with LiveStack(config, env, home / ".llama-stack-responses", host=host, forks=forks) as running:
        yield running
    assert not forks.refusals


def secret_file(stack: LiveStack) -> Path:
    return stack.state_dir / "responses.db.secret"


def drops(stack: LiveStack) -> bool:
    """Whether the stack drops reasoning that it cannot open, as the starter template does."""
    config = yaml.safe_load((stack.state_dir.parent / "config.yaml").read_text())
    return responses_config(config).get("unreadable_reasoning") == "drop"


def turn_of_a_client(wire: Wire, upstream: Upstream, *, store: bool) -> list[Json]:
    """Return the history that a client keeps of a turn, with its reasoning sealed and shown."""
    upstream.script(NAME, reply(reasoning("Hm."), tool_call(0, "c1", "f", "{}")))
    created = wire.create(
        model=MODEL, input=[QUESTION], tools=TOOLS, store=store, include=["reasoning.encrypted_content"]
    )
    return [QUESTION, *created["output"], {"type": "function_call_output", "call_id": "c1", "output": "ok"}]


def continued(stack: LiveStack, upstream: Upstream, kept: list[Json], **more: bool) -> str | None:
    """Continue from what a client kept; return the reasoning that the model gets."""
    upstream.script(NAME, reply(text("Done.")))
    with Wire(stack) as wire:
        assert output_text(wire.create(model=MODEL, input=kept, tools=TOOLS, **more)) == "Done."
    thought: str | None = upstream.requests(NAME)[-1].body["messages"][1].get("reasoning_content")
    return thought


def test_sealed_reasoning_of_a_client_opens_after_a_restart(stack: LiveStack, upstream: Upstream) -> None:
    with Wire(stack) as wire:
        kept = turn_of_a_client(wire, upstream, store=False)
    sealed = [{"type": "reasoning", "summary": [], "encrypted_content": kept[1]["encrypted_content"]}]
    assert stat.S_IMODE(secret_file(stack).stat().st_mode) == 0o600
    secret = secret_file(stack).read_text()
    assert len(b64decode(secret)) == 32
    for stop in (stack.stop, stack.kill):
        stop()
        stack.start()
        assert continued(stack, upstream, [QUESTION, *sealed, *kept[2:]], store=False) == "Hm."
    assert secret_file(stack).read_text() == secret
    log = stack.log.read_text(errors="replace")
    assert secret not in log
    assert "secrets differ" not in log
    assert secret.encode() not in (stack.state_dir / "responses.db").read_bytes()


def test_reasoning_whose_secret_is_gone_is_read_as_it_is_stored_or_dropped_or_refused(
    stack: LiveStack, upstream: Upstream
) -> None:
    with Wire(stack) as wire:
        stored, unstored = (turn_of_a_client(wire, upstream, store=store) for store in (True, False))
    stack.stop()
    secret_file(stack).unlink()
    stack.start()
    bare = {key: value for key, value in stored[1].items() if key != "content"}
    assert continued(stack, upstream, [QUESTION, bare, *stored[2:]], store=False) == "Hm."
    if drops(stack):
        sealed_only = {key: value for key, value in unstored[1].items() if key != "content"}
        assert continued(stack, upstream, [QUESTION, sealed_only, *unstored[2:]], store=False) is None
        return
    with Wire(stack) as wire:
        refused = error_of(wire.post({"model": MODEL, "input": unstored, "tools": TOOLS}), 400)
        assert refused["code"] == "invalid_encrypted_content"
        assert "have the operator add that secret to the setting 'secrets'" in refused["message"]
        conversation = wire.http.post("/conversations", json={"items": [QUESTION, bare]})
        assert conversation.status_code == 200, conversation.text
        error_of(wire.http.post("/conversations", json={"items": unstored}), 400)


def test_configured_secret_opens_what_the_kept_one_sealed(
    host: Host,
    stack_env: dict[str, str],
    stack: LiveStack,
    forks_at_home: tuple[Path, Forks],
    upstream: Upstream,
) -> None:
    with Wire(stack) as wire:
        kept = turn_of_a_client(wire, upstream, store=False)
    stack.stop()
    home, forks = forks_at_home
    env = {
        **stack_env,
        "HOME": str(home),
        "INFERENCE_URL": upstream.base_url,
        "RESPONSES_SECRET": "A" * 43 + "=",
    }
    with LiveStack(STARTER, env, stack.state_dir, host=host, forks=forks) as configured:
        assert continued(configured, upstream, kept, store=False) == "Hm."
