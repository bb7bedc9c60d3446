"""The compared servers: how each is started in front of the model server."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import httpx
import yaml

from benchmarks.rivals.environments import pinned
from benchmarks.servers import BUILTIN, OURS, stack
from tests.support.process import free_port
from tests.support.stack import Host, LiveStack

type Arguments = tuple[list[str], Mapping[str, str]]


class Program(LiveStack):
    """A server that is no stack: a command that listens on a port.

    Args:
        arguments: from the port to the command, and what it adds to the environment.
        health: the path that answers with 200 once it is ready.
    """

    def __init__(self, arguments: Callable[[int], Arguments], health: str, folder: Path) -> None:
        super().__init__(folder, {"HOME": str(folder), "NO_COLOR": "1"}, folder)
        self._arguments, self._path = arguments, health

    def _command(self) -> list[str]:
        command, extra = self._arguments(self.port)
        return ["env", *(f"{name}={value}" for name, value in extra.items()), *command]

    def _health(self) -> bool | None:
        try:
            return httpx.get(f"{self.base_url}{self._path}", timeout=5, trust_env=False).is_success or None
        except httpx.TransportError:
            return None


@dataclass(frozen=True, slots=True)
class Rival:
    """One compared server.

    Attributes:
        name: for `--only`.
        title: what the table says.
        environment: the name of its environment and pins.
        package: the package whose version counts.
        open: makes it, with the root URL of the model server and a folder for its state.
        prefix: of the names of its models.
        store: what it stores responses in.
    """

    name: str
    title: str
    environment: str
    package: str
    open: Callable[[Path, str, Path], LiveStack]
    prefix: str = ""
    store: str = "SQLite"

    @property
    def version(self) -> str:
        """Its pinned version."""
        return pinned(self.environment, self.package)


def _stack(kind: str, host: Host) -> Callable[[Path, str, Path], LiveStack]:
    def opened(home: Path, url: str, folder: Path) -> LiveStack:
        folder.mkdir(parents=True, exist_ok=True)
        return stack(kind, host, f"{url}/v1", folder, python=home / "bin" / "python")

    return opened


def _agentic_api(home: Path, url: str, folder: Path) -> LiveStack:
    def arguments(port: int) -> Arguments:
        command = [str(home / "bin" / "agentic-server"), "--llm-api-base", url, "--skip-llm-ready-check"]
        listen = ["--gateway-host", "127.0.0.1", "--gateway-port", str(port)]
        return [*command, *listen, "--db-url", f"sqlite://{folder}/responses.db"], {}

    return Program(arguments, "/health", folder)


def _smg(home: Path, url: str, folder: Path) -> LiveStack:
    metrics = free_port()

    def arguments(port: int) -> Arguments:
        command = [str(home / "bin" / "smg"), "launch", "--backend", "openai", "--worker-urls", url]
        listen = ["--host", "127.0.0.1", "--port", str(port)]
        watched = ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics), "--log-level", "warn"]
        return [*command, *listen, *watched, "--history-backend", "memory"], {}

    return Program(arguments, "/health", folder)


def litellm(
    home: Path, url: str, folder: Path, models: Mapping[str, str] = MappingProxyType({"*": "openai/*"})
) -> LiveStack:
    """Return LiteLLM's proxy with these models, each with its name at a provider of LiteLLM."""
    folder.mkdir(parents=True, exist_ok=True)
    server = {"api_base": f"{url}/v1", "api_key": "none"}
    listed = [{"model_name": name, "litellm_params": {"model": model, **server}} for name, model in models.items()]
    settings = {"litellm_settings": {"telemetry": False, "num_retries": 0}}
    settings["general_settings"] = {"dangerously_permit_weak_or_unset_master_key": True}
    config = folder / "litellm.yaml"
    config.write_text(yaml.safe_dump({"model_list": listed} | settings))

    def arguments(port: int) -> Arguments:
        command = [str(home / "bin" / "litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
        path = f"{home / 'bin'}:{os.environ['PATH']}"
        return command, {"PATH": path, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "WARNING"}

    return Program(arguments, "/health/liveliness", folder)


def _agentserver(home: Path, url: str, folder: Path) -> LiveStack:
    app = Path(__file__).with_name("agentserver_app.py")

    def arguments(port: int) -> Arguments:
        command = [str(home / "bin" / "python"), str(app), str(port), f"{url}/v1"]
        return command, {"AGENTSERVER_STATE_ROOT": str(folder / "state")}

    return Program(arguments, "/readiness", folder)


RIVALS: Final = (
    Rival("ours", "this project on llama-stack", "llama-stack", "llama-stack", _stack(OURS, "llama_stack"), "local/"),
    Rival("ours-ogx", "this project on OGX", "ogx", "ogx", _stack(OURS, "ogx"), "local/"),
    Rival("builtin", "llama-stack's own", "llama-stack", "llama-stack", _stack(BUILTIN, "llama_stack"), "local/"),
    Rival("builtin-ogx", "OGX's own", "ogx", "ogx", _stack(BUILTIN, "ogx"), "local/"),
    Rival("agentic-api", "agentic-api", "agentic-api", "agentic-api", _agentic_api),
    Rival("smg", "SMG", "smg", "smg", _smg, store="memory"),
    Rival("litellm", "LiteLLM's proxy", "litellm", "litellm", litellm, store="nothing"),
    Rival(
        "agentserver",
        "azure-ai-agentserver-responses",
        "agentserver",
        "azure-ai-agentserver-responses",
        _agentserver,
        store="files",
    ),
)
