"""Real model servers with tiny models of random weights: vLLM, transformers, llama.cpp, and LiteLLM in front of one.

with vllm_server(folder) as server:
    httpx.post(f"{server.url}/chat/completions", json={"model": server.model, ...})

`make model-servers` makes their environments. Start them from the main thread (`Child`).
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from subprocess import run
from tempfile import mkdtemp
from typing import Final

import httpx
import yaml

from tests.support.process import Child, free_port

ROOT: Final = Path(__file__).parents[2]
PYTHON: Final = ROOT / ".venv-model-servers" / "bin" / "python"
LITELLM: Final = ROOT / ".venv-litellm" / "bin" / "litellm"
MISTRAL: Final = Path(__file__).with_name("mistral.jinja")
"""A template like those of Mistral's models: it refuses turns that do not alternate, and long ids of calls."""

MODEL: Final = "tiny"
DENSE: Final = '{"backend": "xgrammar", "disable_any_whitespace": true}'
"""Without it, such a model writes white space wherever a schema allows it, until its context is full."""
READY_SECONDS: Final = 840.0
"""Time limit for a server to start on a busy machine: vLLM imports torch in three processes."""
OFFLINE: Final = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}


@dataclass(frozen=True, slots=True)
class ModelServer:
    """A model server that runs.

    Attributes:
        name: what it is, and with which model.
        url: its address, up to /v1.
        model: the name of its model.
        key: its key.
        forces_calls: whether it enforces `tool_choice: required`.
        forces_schemas: whether it enforces a JSON schema.
        reasons: whether it tells reasoning from text.
        context: the tokens of the model's context.
    """

    name: str
    url: str
    model: str = MODEL
    key: str = "none"
    forces_calls: bool = True
    forces_schemas: bool = True
    reasons: bool = False
    context: int = 4096


type Started = AbstractContextManager[ModelServer]


def tiny_model(folder: Path, template: Path | None = None) -> Path:
    """Return the model in a folder, where it is made once; with another chat template, a copy."""
    plain = folder / "model-plain"
    if not (plain / "model.safetensors").exists():
        command = [PYTHON, Path(__file__).with_name("tiny_model.py"), plain]
        run(list(map(str, command)), check=True, env={**os.environ, **OFFLINE}, capture_output=True)
    if template is None:
        return plain
    target = folder / f"model-{template.stem}"
    shutil.copytree(plain, target, dirs_exist_ok=True)
    shutil.copy(template, target / "chat_template.jinja")
    return target


@contextmanager
def _serving(
    command: Sequence[str | Path], log: Path, port: int, env: Mapping[str, str], path: str = "/v1/models"
) -> Iterator[str]:
    """Run a server until the block ends, and yield its address up to /v1 when it answers."""
    url = f"http://127.0.0.1:{port}"

    def answers() -> str | None:
        try:
            return url if httpx.get(url + path, timeout=5, trust_env=False).is_success else None
        except httpx.HTTPError:
            return None

    child = Child(list(map(str, command)), log=log, env={**os.environ, **OFFLINE, **env})
    try:
        yield child.wait_ready(answers, seconds=READY_SECONDS) + "/v1"
    finally:
        child.stop()


def _vllm(folder: Path, template: Path | None, *options: str) -> AbstractContextManager[str]:
    port = free_port()
    command: list[str | Path] = [
        *(PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", tiny_model(folder, template)),
        *("--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"),
        *("--max-model-len", "4096", "--enforce-eager", "--structured-outputs-config", DENSE, *options),
    ]
    return _serving(command, folder / f"vllm-{port}.log", port, {})


@contextmanager
def vllm_server(folder: Path) -> Iterator[ModelServer]:
    """Run vLLM for CPUs, with tools and schemas."""
    with _vllm(folder, None, "--enable-auto-tool-choice", "--tool-call-parser", "hermes") as url:
        yield ModelServer("vLLM", url)


@contextmanager
def vllm_mistral_server(folder: Path) -> Iterator[ModelServer]:
    """Run vLLM with a template like those of Mistral, which takes all that the model writes as reasoning."""
    with _vllm(folder, MISTRAL, "--reasoning-parser", "deepseek_r1") as url:
        yield ModelServer("vLLM, Mistral's template", url, forces_calls=False, forces_schemas=False, reasons=True)


@contextmanager
def transformers_server(folder: Path) -> Iterator[ModelServer]:
    """Run the server of transformers, which enforces nothing."""
    model, port = tiny_model(folder), free_port()
    command: list[str | Path] = [
        *(PYTHON.with_name("transformers"), "serve", model, "--host", "127.0.0.1", "--port", str(port)),
        *("--device", "cpu", "--dtype", "float32"),
    ]
    with _serving(command, folder / f"transformers-{port}.log", port, {}, "/health") as url:
        yield ModelServer("transformers", url, str(model), forces_calls=False, forces_schemas=False)


@contextmanager
def llama_cpp_server(folder: Path) -> Iterator[ModelServer]:
    """Run llama.cpp's server with the small model of the demo."""
    log = Path(mkdtemp(dir=folder)) / "llama.log"
    child = Child([sys.executable, "-m", "tests.support.llama_server", "0"], log=log, cwd=ROOT)

    def address() -> str | None:
        match = re.search(r"^listening (\S+)$", log.read_text(errors="replace"), re.MULTILINE)
        return match and match[1]

    try:
        url = child.wait_ready(address, seconds=READY_SECONDS) + "/v1"
        [listed] = httpx.get(f"{url}/models", trust_env=False).json()["data"]
        yield ModelServer("llama.cpp", url, listed["id"])
    finally:
        child.stop()


@contextmanager
def litellm_server(folder: Path) -> Iterator[ModelServer]:
    """Run LiteLLM's proxy in front of llama.cpp's server."""
    with llama_cpp_server(folder) as behind:
        port = free_port()
        config = folder / f"litellm-{port}.yaml"
        of_model = {"model": f"openai/{behind.model}", "api_base": behind.url, "api_key": "none"}
        key = f"sk-{token_hex(24)}"
        settings = {"litellm_settings": {"telemetry": False, "num_retries": 0}, "general_settings": {"master_key": key}}
        config.write_text(
            yaml.safe_dump({"model_list": [{"model_name": MODEL, "litellm_params": of_model}], **settings})
        )
        command: list[str | Path] = [LITELLM, "--config", config, "--host", "127.0.0.1", "--port", str(port)]
        env = {"PATH": f"{LITELLM.parent}:{os.environ['PATH']}"}
        with _serving(command, folder / f"litellm-{port}.log", port, env, "/health/liveliness") as url:
            yield ModelServer("LiteLLM", url, key=key)


MODEL_SERVERS: Final[Mapping[str, Callable[[Path], Started]]] = {
    "llama.cpp": llama_cpp_server,
    "litellm": litellm_server,
    "transformers": transformers_server,
    "vllm": vllm_server,
    "vllm-mistral": vllm_mistral_server,
}
"""Starts each server in a folder, which several servers can share: so the tiny model is made once."""
