"""Stack configurations derived from another one, and inspection of the stacks' folders."""

import sqlite3
from collections.abc import Callable, Iterator, Set
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

from llama_stack_responses.store import codec
from tests.support.stack import Host

type Json = dict[str, Any]

_AT_INTERVALS = ("p/", "se/", "sw/", "rf/")
"""The keys of workers, servers, sweepers and refused requests, which are written at intervals."""


def variant(template: Path, target: Path, change: Callable[[Json], None]) -> Path:
    """Write a changed `template` to `target`; its references to environment variables are kept."""
    config = yaml.safe_load(template.read_text())
    change(config)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(yaml.safe_dump(config, sort_keys=False))
    return target


def add_host_provider(config: Json) -> None:
    """Add the host's own provider for the model server, with the id `vllm`."""
    local = config["providers"]["inference"][0]
    of_host = {
        "base_url": local["config"]["base_url"],
        "api_token": local["config"]["api_key"],
        "max_tokens": 0,  # the default would truncate every answer at 4096 tokens
        "refresh_models": True,
    }
    found = {"provider_id": "vllm", "provider_type": "remote::vllm", "config": of_host}
    config["providers"]["inference"].append(found)


def add_containers(config: Json) -> None:
    """Add containers for the code interpreter, with packages of the environment of the tests, and a domain."""
    packages, network = ["numpy", "pandas", "matplotlib"], {"allowed_domains": ["api.github.com"]}
    found = {"folder": "${env.STATE_DIR}/containers", "files_mb": 32, "packages": packages, "network": network}
    responses_config(config)["code_interpreter"] = found


def add_vector_stores(config: Json) -> None:
    """Add vector stores, and the embedding model `words-64` of the model server."""
    config["providers"]["inference"][0]["config"]["embedding_models"] = {"words-64": 64}
    config["apis"].append("file_processors")
    config["providers"]["file_processors"] = [{"provider_id": "files", "provider_type": "inline::pypdf"}]
    found = {"persistence": {"namespace": "vector_io", "backend": "kv_default"}}
    config["providers"]["vector_io"] = [{"provider_id": "vectors", "provider_type": "inline::faiss", "config": found}]


def await_refusals(config: Json) -> None:
    """Let streams wait for the model server's refusal however long it takes, so that it always is an HTTP status."""
    responses_config(config)["stream_refusal_seconds"] = 60


def open_this_machine(config: Json) -> None:
    """Allow fetches from 127.0.0.1, where the tests' servers run."""
    responses_config(config)["fetch"] = {"allowed_networks": ["127.0.0.1/32"]}


def let_browse(config: Json) -> None:
    """Give the model `browsing` the web search in the form of a browser."""
    _add_profile(config, "browsing", web_search="browser")


def let_summarize(config: Json) -> None:
    """Let the model `short` summarize the reasoning of the model `summarized`."""
    _add_profile(config, "summarized", reasoning_summary="generated", summary_model="local/short")


def let_read(config: Json) -> None:
    """Add a model for each kind of support for files and images: `reads-files`, `blind` and `offline`."""
    _add_profile(config, "reads-files", files=True)
    _add_profile(config, "blind", images=False, audio=False)
    _add_profile(config, "offline", image_urls="fetch")


def let_count(config: Json) -> None:
    """Add a tokenizer for the model `tokenized`."""
    _add_profile(config, "tokenized", tokenizer="o200k_base")


def let_answer_whole(config: Json) -> None:
    """Add models requested without a stream: `unstreamed-...` always, `as-asked-...` if the client does not stream."""
    _add_profile(config, "unstreamed-*", stream="never")
    _add_profile(config, "as-asked-*", stream="as_asked")


def _add_profile(config: Json, model: str, **settings: Any) -> None:
    responses_config(config).setdefault("profiles", []).append({"match": f"*/{model}", **settings})


def add_moderation(config: Json, host: Host) -> None:
    """Add moderation by `words-1` and `away` of the model server, and by a Llama Guard that uses `guard-8b`.

    OGX has no Safety API: there the model server moderates with `words-1`.
    """
    if host == "ogx":
        responses_config(config)["moderation"] = {"url": "${env.INFERENCE_URL}", "model": "words-1"}
        return
    config["apis"].append("safety")
    config["safety"] = {"default_shield_id": "words-1"}
    server = {"base_url": "${env.INFERENCE_URL}"}
    found = {"provider_id": "server", "provider_type": "remote::passthrough", "config": server}
    moderation_filter = {"provider_id": "llama-guard", "provider_type": "inline::llama-guard", "config": {}}
    config["providers"]["safety"] = [found, moderation_filter]
    config.setdefault("registered_resources", {})["shields"] = [
        *({"shield_id": name, "provider_id": "server", "provider_shield_id": name} for name in ("words-1", "away")),
        {"shield_id": "guard", "provider_id": "llama-guard", "provider_shield_id": "local/guard-8b"},
    ]


def responses_config(config: Json) -> Json:
    """Return the configuration of the responses provider."""
    found: Json = config["providers"]["responses"][0]["config"]
    return found


def traces(folder: Path, needle: str) -> list[str]:
    """Return where `needle` occurs below `folder`: in the bytes of a file, a row of a database, or a stored record.

    Bytes alone prove nothing, since records are compressed and rows are split at the end of a page.
    """
    files = {path: _bytes(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    found = [str(path.relative_to(folder)) for path, there in files.items() if needle.encode() in there]
    # Read all files before opening a database, which may remove the journal files that a killed server left.
    for path in [path for path, there in files.items() if there.startswith(b"SQLite format 3")]:
        found += [f"{path.name}: {where}" for where, text in _rows(path) if needle in text]
    return found


def rows(database: Path, table: str) -> int:
    """Return the number of rows of a table; 0 if it does not exist."""
    with closing(sqlite3.connect(database, timeout=60)) as connection:
        if table not in _tables(connection):
            return 0
        count: int = connection.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0]
        return count


def records(database: Path) -> dict[str, bytes]:
    """Return the contents of the responses' store, by key, without what is written at intervals; empty before a response is stored."""
    if not database.exists():
        return {}
    with closing(sqlite3.connect(database, timeout=60)) as connection:
        found = connection.execute("SELECT key, value FROM records")
        return {key: value for key, value in found if not key.startswith(_AT_INTERVALS)}


def keeps(database: Path, words: str) -> bool:
    """Whether any row of a database contains these words; free pages do not count."""
    return any(words in text for _, text in _rows(database))


def text_of_new_records(database: Path, before: Set[str]) -> str:
    """Return the text of all new records in the responses' store: those with keys not in `before`."""
    return " ".join(_readable(value) for key, value in records(database).items() if key not in before)


def stored_bytes(database: Path) -> int:
    """Return the size of everything in the responses' store, including keys."""
    return sum(len(key) + len(value) for key, value in records(database).items())


def _bytes(path: Path) -> bytes:
    """Return the contents of a file; empty if it no longer exists, like the journal of a running server."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _tables(connection: sqlite3.Connection) -> list[str]:
    """Return the names of the tables that have rows of their own."""
    of_tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL TABLE%'"
    return [name for (name,) in connection.execute(of_tables)]


def _rows(path: Path) -> Iterator[tuple[str, str]]:
    with closing(sqlite3.connect(path, timeout=60)) as connection:
        for table in _tables(connection):
            for row in connection.execute(f'SELECT * FROM "{table}"'):
                yield table, " ".join(map(_readable, row))


def _readable(value: Any) -> str:
    if not isinstance(value, bytes):
        return str(value)
    try:
        return str(codec.decode(value))
    except Exception:  # noqa: BLE001 - not a record of this project
        return value.decode("utf-8", "replace")
