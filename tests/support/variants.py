"""Stack configurations made from another one, and what stacks leave in their folders."""

import sqlite3
from collections.abc import Callable, Iterator, Set
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

from llama_stack_responses.store import codec
from tests.support.stack import Host

type Json = dict[str, Any]


def variant(template: Path, target: Path, change: Callable[[Json], None]) -> Path:
    """Write `template`, changed, to `target`; its references to the environment stay as they are."""
    config = yaml.safe_load(template.read_text())
    change(config)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(yaml.safe_dump(config, sort_keys=False))
    return target


def add_host_provider(config: Json) -> None:
    """Lets a stack reach its model server also through the host's own provider, under the id `vllm`."""
    [local] = config["providers"]["inference"]
    of_host = {
        "base_url": local["config"]["base_url"],
        "api_token": local["config"]["api_key"],
        "max_tokens": 0,  # left out, it would cut every answer at 4096 tokens
        "refresh_models": True,
    }
    found = {"provider_id": "vllm", "provider_type": "remote::vllm", "config": of_host}
    config["providers"]["inference"].append(found)


def add_containers(config: Json) -> None:
    """Gives a stack containers to run code in."""
    responses_config(config)["code_interpreter"] = {"folder": "${env.STATE_DIR}/containers", "files_mb": 32}


def add_vector_stores(config: Json) -> None:
    """Gives a stack vector stores, and its model server the embedding model `words-64`."""
    config["apis"] += ["vector_io", "file_processors"]
    config["providers"]["inference"][0]["config"]["embedding_models"] = {"words-64": 64}
    config["providers"]["file_processors"] = [{"provider_id": "files", "provider_type": "inline::pypdf"}]
    found = {"persistence": {"namespace": "vector_io", "backend": "kv_default"}}
    config["providers"]["vector_io"] = [{"provider_id": "vectors", "provider_type": "inline::faiss", "config": found}]


def open_this_machine(config: Json) -> None:
    """Lets a stack fetch from 127.0.0.1, where the tests' own servers are."""
    responses_config(config)["fetch"] = {"allowed_networks": ["127.0.0.1/32"]}


def let_browse(config: Json) -> None:
    """Shows the web search to the model `browsing` as a browser."""
    _add_profile(config, "browsing", web_search="browser")


def let_summarize(config: Json) -> None:
    """Has the model `short` summarize what the model `summarized` thinks."""
    _add_profile(config, "summarized", reasoning_summary="generated", summary_model="local/short")


def let_read(config: Json) -> None:
    """Has one model for each way of taking files and images: `reads-files`, `blind` and `offline`."""
    _add_profile(config, "reads-files", files=True)
    _add_profile(config, "blind", images=False, audio=False)
    _add_profile(config, "offline", image_urls="fetch")


def let_count(config: Json) -> None:
    """Has a tokenizer for the model `tokenized`."""
    _add_profile(config, "tokenized", tokenizer="o200k_base")


def let_answer_whole(config: Json) -> None:
    """Has models that are asked without a stream: `unstreamed-...` always, `as-asked-...` when nobody reads it."""
    _add_profile(config, "unstreamed-*", stream="never")
    _add_profile(config, "as-asked-*", stream="as_asked")


def _add_profile(config: Json, model: str, **settings: Any) -> None:
    responses_config(config).setdefault("profiles", []).append({"match": f"*/{model}", **settings})


def add_moderation(config: Json, host: Host) -> None:
    """Has texts checked by `words-1` and `away` of the model server; `guard` is a Llama Guard that asks `guard-8b`.

    On OGX, which has none, that is a third one of the model server's.
    """
    if host == "ogx":
        responses_config(config)["moderation"] = {"url": "${env.INFERENCE_URL}", "model": "words-1"}
        return
    config["apis"].append("safety")
    config["safety"] = {"default_shield_id": "words-1"}
    server = {"base_url": "${env.INFERENCE_URL}"}
    found = {"provider_id": "server", "provider_type": "remote::passthrough", "config": server}
    guard = {"provider_id": "llama-guard", "provider_type": "inline::llama-guard", "config": {}}
    config["providers"]["safety"] = [found, guard]
    config.setdefault("registered_resources", {})["shields"] = [
        *({"shield_id": name, "provider_id": "server", "provider_shield_id": name} for name in ("words-1", "away")),
        {"shield_id": "guard", "provider_id": "llama-guard", "provider_shield_id": "local/guard-8b"},
    ]


def responses_config(config: Json) -> Json:
    """The configuration of the responses provider."""
    found: Json = config["providers"]["responses"][0]["config"]
    return found


def traces(folder: Path, needle: str) -> list[str]:
    """Where `needle` is found below `folder`: in the bytes of a file, in a row of a database, in a stored record.

    Records are compressed and rows are cut at the end of a page, so that the bytes alone would prove nothing.
    """
    files = {path: _bytes(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    found = [str(path.relative_to(folder)) for path, there in files.items() if needle.encode() in there]
    # All of them before one is opened: that may remove the files beside it which a killed server left.
    for path in [path for path, there in files.items() if there.startswith(b"SQLite format 3")]:
        found += [f"{path.name}: {where}" for where, text in _rows(path) if needle in text]
    return found


def rows(database: Path, table: str) -> int:
    """The number of rows of a table; 0 if there is no such table."""
    with closing(sqlite3.connect(database, timeout=60)) as connection:
        if table not in _tables(connection):
            return 0
        count: int = connection.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0]
        return count


def records(database: Path) -> dict[str, bytes]:
    """What the responses' store holds, by key; nothing before the first response is stored."""
    if not database.exists():
        return {}
    with closing(sqlite3.connect(database, timeout=60)) as connection:
        return dict(connection.execute("SELECT key, value FROM records"))


def keeps(database: Path, words: str) -> bool:
    """Whether any row of a database says this; what only lies about in free pages does not count."""
    return any(words in text for _, text in _rows(database))


def said_since(database: Path, before: Set[str]) -> str:
    """All that the records of the responses' store say whose keys were not there before."""
    return " ".join(_readable(value) for key, value in records(database).items() if key not in before)


def stored_bytes(database: Path) -> int:
    """The size of all that the responses' store holds, keys included."""
    return sum(len(key) + len(value) for key, value in records(database).items())


def _bytes(path: Path) -> bytes:
    """What the file has; nothing if it is gone by now, as a journal is whose server lives."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _tables(connection: sqlite3.Connection) -> list[str]:
    return [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]


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
    except Exception:  # noqa: BLE001 - it is no record of ours
        return value.decode("utf-8", "replace")
