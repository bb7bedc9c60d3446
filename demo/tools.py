"""The hosted tools of `make serve`, and how to enable the others."""

import asyncio
import os
import tempfile
from pathlib import Path

from pydantic import ValidationError

from llama_stack_responses.core.owner import ANONYMOUS
from llama_stack_responses.core.setting_values import listed
from llama_stack_responses.features.code.containers.opening import installed_packages, open_containers, open_jail
from llama_stack_responses.features.code.settings import CodeInterpreter
from llama_stack_responses.host.searxng import SearxngConfig
from stack import EMBEDDING_MODEL

SERVICES = {
    "WEB_SEARCH": "public search engines, by ddgs",
    "SEARXNG_URL": "SearXNG",
    "TAVILY_SEARCH_API_KEY": "Tavily",
    "BRAVE_SEARCH_API_KEY": "Brave",
}
"""Web search services, by the environment variable that enables them."""


def check_searxng() -> None:
    """Raise `ValueError` with a sentence for the user if the address of SearXNG is invalid."""
    if url := os.environ.get("SEARXNG_URL"):
        try:
            SearxngConfig(url=url)
        except ValidationError as problem:
            raise ValueError(f"SEARXNG_URL is {url!r}; it must be of the form http://HOST:PORT.") from problem


def _settings(folder: Path) -> CodeInterpreter:
    return CodeInterpreter(folder=folder, packages=listed(os.environ.get("CODE_PACKAGES")), seconds=20)


async def _try(folder: Path) -> str | None:
    settings = _settings(folder)
    containers = open_containers(settings, open_jail(settings))
    try:
        entry = await containers.create(ANONYMOUS)
        ran = await entry.container.command("echo works", 20, 100)
        return None if ran.stdout.strip() == "works" else (ran.stderr.strip() or ran.stopped or "no output")
    finally:
        await containers.close()


def why_no_sandbox() -> str | None:
    """Return why code cannot run in a sandbox on this machine; None if it can."""
    try:
        with tempfile.TemporaryDirectory(prefix="llama-stack-responses-") as folder:
            why = asyncio.run(_try(Path(folder)))
    except Exception as problem:  # noqa: BLE001 (systems fail in many ways)
        why = str(problem) or type(problem).__name__
    return why.splitlines()[0] if why else None


def _code() -> str:
    packages = installed_packages(_settings(Path()))
    if packages.shown:
        return f"on, in a sandbox with {', '.join(packages.shown)}"
    return "on, in a sandbox; CODE_PACKAGES=numpy,pandas,matplotlib make serve adds packages"


def _images() -> str:
    return "on, with the server of IMAGE_URL" if os.environ.get("IMAGE_URL") else "off; IMAGE_URL=... make serve"


def _files() -> str:
    if os.environ.get("FILE_SEARCH"):
        return f"on, with the embedding model embeddings/{EMBEDDING_MODEL}: docs/guides/file-search.md"
    if models := os.environ.get("EMBEDDING_MODELS"):
        return f"on, with those of EMBEDDING_MODELS that the model server lists: {models}"
    return "off; FILE_SEARCH=local make serve"


def _mcp() -> str:
    if networks := os.environ.get("ALLOWED_NETWORKS"):
        return f"on, with public MCP servers and those in: {networks}"
    return "on, with public MCP servers; ALLOWED_NETWORKS=loopback make serve adds those of this machine"


def described(no_sandbox: str | None) -> list[str]:
    """Return a line for each hosted tool."""
    service = next((name for variable, name in SERVICES.items() if os.environ.get(variable)), None)
    return [
        f"  web_search        on, {service}" if service else "  web_search        off; WEB_SEARCH=ddgs make serve",
        f"  code_interpreter  off; {no_sandbox}" if no_sandbox else f"  code_interpreter  {_code()}",
        f"  image_generation  {_images()}",
        f"  mcp               {_mcp()}",
        f"  file_search       {_files()}",
    ]
