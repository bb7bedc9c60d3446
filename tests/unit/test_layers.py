"""Rules of the code's structure, checked on syntax trees: layers of imports, no state in modules, no long functions.

Each rule is a function from a module's syntax tree to its violations, and is tested on code with violations.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

import llama_stack_openai_chat
import llama_stack_responses
from tests.support.sources import nodes, trees

PACKAGE: Final = "llama_stack_responses"
CHAT: Final = "llama_stack_openai_chat"
ROOTS: Final = {each.__name__: Path(each.__path__[0]) for each in (llama_stack_responses, llama_stack_openai_chat)}

LAYERS: Final = {
    PACKAGE: (
        {"core", "installed_host", "intervals", "logs"},
        {"concurrency", "items"},
        {"requests"},
        {"stream"},
        {"admission", "chat", "process_pool", "sealing", "telemetry"},
        {"config", "documents", "fetch", "model_server"},
        {"store"},
        {"inputs", "lifecycle", "tools"},
        {"generation"},
        {"jobs"},
        {"service"},
        {"wire"},
        {"commands", "feature"},
        {"features"},
        {"host"},
        {"cli", "provider"},
        {"console"},
    ),
    f"{PACKAGE}.core": (
        {
            "charsets",
            "discovery",
            "backoff",
            "errors",
            "input_policy",
            "image_structure",
            "json_decoding",
            "json_values",
            "late_patterns",
            "lru_cache",
            "owner",
            "program_names",
            "statuses",
            "surrogates",
            "types",
        },
        {
            "access",
            "decoded_arguments",
            "base64_pieces",
            "card_sections",
            "exchanges",
            "feature_settings",
            "ids",
            "media_formats",
            "json_blocks",
            "limited_amounts",
            "moderation_results",
            "recent_counts",
            "setting_values",
        },
        {"shapes"},
        {"answer_settings", "inline_data"},
        {"item_fields"},
        {"tool_fields"},
    ),
    f"{PACKAGE}.items": (
        {"call_result", "content_parts", "form", "mcp_approvals", "reasoning_segments", "view"},
        {"kind"},
        {"kinds"},
        {"registry"},
        {"listed_items", "program_calls", "read_items", "refused_input", "tool_usage"},
        {"call_pairs", "truncation"},
        {"compaction"},
    ),
    f"{PACKAGE}.generation": (
        {"activity", "event_times", "interruption", "owner_names", "shared_events", "shared_timer"},
        {
            "delta_filter",
            "dependencies",
            "recent_activity",
            "response_log",
            "event_buffer",
            "held_output",
            "model_server_queues",
            "request_adaptation",
            "repetition",
            "stop_point",
            "stream_close",
            "timeline",
            "watchdog",
        },
        {
            "cache_diagnostics",
            "connection_options",
            "held_answer",
            "reasoning_summary",
            "token_counts",
            "tool_execution",
        },
        {"chunk_intake", "context_fit"},
        {"model_round"},
        {"auto_compaction"},
        {"loop"},
        {"driver", "warmup"},
        {"factory", "run"},
    ),
    f"{PACKAGE}.jobs": (
        {"work_class"},
        {
            "acceptance",
            "event_rows",
            "fair_order",
            "held_inputs",
            "hints",
            "job",
            "job_secrets",
            "notifier",
            "row_quota",
            "served_partitions",
            "recorded_requests",
            "store_retry",
        },
        {"dead_workers", "direct_delivery", "notification_listener"},
        {"worker_leases"},
        {"event_log", "queue"},
        {"job_writer"},
        {"shared_commits"},
        {"event_follower", "heartbeat", "live_responses", "overview", "runner", "unbegun_jobs"},
        {"foreground_leases"},
        {"worker"},
        {"background"},
    ),
    f"{PACKAGE}.tools": (
        {"tool_function", "tool_history"},
        {"tool"},
        {"function_names"},
        {"client", "mcp"},
        {"hosted", "toolset"},
        {"registry"},
    ),
    f"{PACKAGE}.wire.websocket": (
        {"incoming", "lanes", "steering"},
        {"session"},
        {"connection"},
    ),
    CHAT: (
        {"config", "connection", "json_encoding"},
        {"chunks", "errors", "frames", "pool", "repeated"},
        {"events", "moderation"},
        {"retries"},
        {"stream"},
        {"upstream"},
        {"ranking", "request_body", "tokens"},
        {"host"},
        {"provider"},
    ),
}
"""The modules and folders of each folder, in layers. Each imports only from the layers before its own."""

_OF_HOST: Final = {"llama_stack": {"host"}, "llama_stack_api": {"host"}, "ogx": {"host"}, "ogx_api": {"host"}}
ONLY_IN: Final = {
    PACKAGE: _OF_HOST
    | {
        "openai": {"host", "model_server"},
        "fastapi": {"features", "host", "wire"},
        "starlette": {"features.code", "features.page", "host", "wire"},
        "asyncio": {
            "commands",
            "concurrency",
            "documents",
            "features",
            "fetch",
            "generation",
            "host",
            "inputs",
            "jobs",
            "lifecycle",
            "model_server",
            "process_pool",
            "sealing",
            "service",
            "store",
            "telemetry",
            "tools",
            "wire",
        },
        "asyncpg": {"store"},
        "ddgs": {"tools"},
        "primp": {"tools"},
        "redis": {"store"},
        "referencing": {"chat.adaptation"},
        "sqlite3": {"store"},
        "httpx": {"features", "fetch", "host", "tools.mcp"},
        "httpx2": {"host", "model_server", "tools.mcp"},
        "jsonschema": {"chat.adaptation"},
        "latex2mathml": {"features.page"},
        "logging": {"logs", "process_pool"},
        "markdown_it": {"features.page"},
        "mcp": {"tools.mcp"},
        "mcp_types": {"tools.mcp"},
        "nh3": {"features.page"},
        "opentelemetry": {"concurrency.share", "logs", "telemetry"},
        "packaging": {"features.code"},
        "pygments": {"features.page"},
        "pypdf": {"documents"},
        "_quickjs": {"features.programs"},
        "python_multipart": {"features.code"},
        "tiktoken": {"chat"},
        "tokenizers": {"chat"},
        "trafilatura": {"fetch"},
        "yaml": {"config", "features.code", "host"},
        "obstore": {"features.cold"},
        "zstandard": {"features.cold", "wire"},
        "brotli": {"wire"},
        CHAT: {"host", "model_server"},
    },
    CHAT: _OF_HOST
    | {
        "openai": {"chunks", "errors", "host", "moderation", "retries", "tokens", "upstream"},
        "httptools": {"connection"},
        "opentelemetry": {"upstream"},
        "asyncio": {"connection", "pool", "request_body", "upstream"},
        PACKAGE: set(),
    },
}
"""Packages that only these parts of a package may import, by top-level package."""

THREADS: Final = {
    "concurrency.fair_threads",
    "concurrency.large_work",
    "concurrency.offloading",
    "features.code.sandbox.removal",
}
"""The modules that run calls in threads themselves: those of all work, of requests, and of removed folders."""

MAX_FUNCTION_LINES: Final = 40
"""Largest number of lines of a function, without its docstring."""

MAX_ROOT_FILES: Final = 10
"""Largest number of files at the root of the package: a new module belongs in a folder."""

MODULES: Final = {
    ".".join((package, *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__"): path
    for package, root in ROOTS.items()
    for path in sorted(root.rglob("*.py"))
}

Rule = Callable[[ast.Module, str], Iterator[str]]


# Imports


def parsed() -> Iterator[tuple[str, ast.Module]]:
    """Yield the name and the syntax tree of each module."""
    found = {path: tree for root in ROOTS.values() for path, tree in trees(root).items()}
    return ((module, found[path]) for module, path in MODULES.items())


def imports(tree: ast.Module, module: str) -> Iterator[str]:
    """Yield the full names of the modules that `module` imports, anywhere in it."""
    is_package = MODULES[module].name == "__init__.py"
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".")
            kept = len(parts) - node.level + is_package
            base = ".".join([*(parts[:kept] if node.level else ()), *filter(None, [node.module])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield inner if inner in MODULES else base


def package(module: str) -> str:
    return module.split(".", maxsplit=1)[0]


def unit(module: str, folder: str = "") -> str:
    """Return the first name below the folder (by default the package) that a module belongs to."""
    below = module.removeprefix(folder or package(module)).lstrip(".")
    return below.split(".", maxsplit=1)[0]


def is_in(module: str, folder: str) -> bool:
    return module.startswith(f"{folder}.")


def arrows_back(tree: ast.Module, module: str) -> Iterator[str]:
    for folder, layers in LAYERS.items():
        if not is_in(module, folder):
            continue
        number = {each: place for place, units in enumerate(layers) for each in units}
        for imported in imports(tree, module):
            theirs, ours = unit(imported, folder), unit(module, folder)
            if is_in(imported, folder) and theirs != ours and number[theirs] >= number[ours]:
                yield f"imports {imported}"


def absolute_imports(tree: ast.Module, module: str) -> Iterator[str]:
    """Yield imports of the module's own package that are not relative."""
    for node in nodes(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and package(node.module or "") == package(module):
            yield f"imports {node.module} by its full name"


def strangers(tree: ast.Module, module: str) -> Iterator[str]:
    inside = f"{module.removeprefix(package(module)).lstrip('.')}."
    for imported in imports(tree, module):
        parts = ONLY_IN[package(module)].get(package(imported))
        if parts is not None and not any(inside.startswith(f"{part}.") for part in parts):
            yield f"imports {imported}"


FEATURES: Final = f"{PACKAGE}.features"
EARLY: Final = {
    "kinds": {
        "core.errors",
        "core.exchanges",
        "core.ids",
        "core.item_fields",
        "core.program_names",
        "core.shapes",
        "core.tool_fields",
        "core.types",
        "items.call_result",
        "items.form",
        "items.kind",
        "items.view",
    },
    "settings": {"admission", "core.feature_settings", "core.limited_amounts", "core.setting_values"},
}
"""What the modules of a feature may import that are imported with the core, by their name."""


def feature_of(module: str) -> str:
    """Return the name of the feature that a module belongs to, or an empty string."""
    return unit(module, FEATURES) if is_in(module, FEATURES) else ""


def imported_features(tree: ast.Module, module: str) -> Iterator[str]:
    """Yield imports of a feature by the core or by another feature."""
    for imported in imports(tree, module):
        if (feature := feature_of(imported)) and feature != feature_of(module):
            yield f"imports {imported}"


def early_imports(tree: ast.Module, module: str) -> Iterator[str]:
    """Yield imports by which a feature's `kinds.py` or `settings.py` would need modules that are not imported yet."""
    allowed = EARLY.get(module.rpartition(".")[2], set())
    for imported in imports(tree, module) if feature_of(module) and allowed else ():
        within = imported.removeprefix(f"{PACKAGE}.")
        is_own = feature_of(imported) == feature_of(module)
        if package(imported) == PACKAGE and not is_own and not any(f"{within}.".startswith(f"{a}.") for a in allowed):
            yield f"imports {imported} before the core"


# State

CONTAINERS: Final = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
STATEFUL: Final = {
    *("dict", "list", "set", "bytearray", "defaultdict", "deque", "Counter", "OrderedDict"),
    *("WeakKeyDictionary", "WeakSet", "WeakValueDictionary"),
    *("Condition", "Event", "Lock", "Queue", "RLock", "Semaphore", "local", "ContextVar", "count", "cycle"),
    *("AsyncClient", "Client", "Session", "ThreadPoolExecutor", "connect"),
}
"""Names of callables that create mutable objects."""
MUTATORS: Final = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft"),
    *("remove", "setdefault", "sort", "update"),
}
CONVENTIONAL: Final = {"__all__", "logger", "model_config"}


def state(tree: ast.Module, module: str) -> Iterator[str]:
    """Yield names of a module or class that hold mutable objects, and functions that change objects of the module."""
    bindings = list(_bindings(tree))
    for name, value, is_final in bindings:
        if name in CONVENTIONAL or value is None:
            continue
        if isinstance(value, ast.Call) and _called(value) in STATEFUL:
            yield f"{name} is a {_called(value)}"
        elif isinstance(value, (*CONTAINERS, ast.Call)) and not (is_final or name.isupper()):
            yield f"{name} is no constant"
        elif isinstance(value, ast.List | ast.Dict | ast.Set) and not list(ast.iter_child_nodes(value))[:1]:
            yield f"{name} is empty: it waits to be filled"
    yield from _changes(tree, {name for name, _, _ in bindings})


def _bindings(tree: ast.Module) -> Iterator[tuple[str, ast.expr | None, bool]]:
    """Yield (name, value, whether it is `Final`) for the assignments of a module and its classes, outside functions."""
    pending: list[ast.stmt] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Assign):
            yield from ((target.id, node.value, False) for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.value, ast.unparse(node.annotation).startswith(("Final", "ClassVar[Final"))
        elif isinstance(node, ast.ClassDef) and not _has_fields(node):
            pending += node.body
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            pending += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]


def _has_fields(node: ast.ClassDef) -> bool:
    """Return whether the class's assignments are fields of its instances: a dataclass, or a pydantic model."""
    names = {ast.unparse(each).split("(")[0] for each in [*node.decorator_list, *node.bases]}
    return bool(names & {"dataclass", "BaseModel", "LimitedAmounts"})


def _changes(tree: ast.Module, held: set[str]) -> Iterator[str]:
    for function in nodes(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if {"cache", "lru_cache"} & {
            ast.unparse(each).split("(")[0].split(".")[-1] for each in function.decorator_list
        }:
            yield f"{function.name} remembers its results"
        theirs = held - _local_names(function)
        for node in ast.walk(function):
            if isinstance(node, ast.Global):
                yield f"{function.name} binds {', '.join(node.names)}"
            elif (name := _changed(node)) in theirs:
                yield f"{function.name} changes {name}"


def _local_names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    stored = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return stored | {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}


def _changed(node: ast.AST) -> str | None:
    """Return the name of the object that this node changes in place."""
    inside: ast.expr | None = None
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        inside = node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
        inside = node.func.value
    return inside.id if isinstance(inside, ast.Name) else None


def _called(call: ast.Call) -> str:
    return ast.unparse(call.func).split("[")[0].split(".")[-1]


# Functions


def own_threads(tree: ast.Module, module: str) -> Iterator[str]:
    """Yield what leaves the event loop without the functions of `concurrency/offloading.py`."""
    if package(module) == PACKAGE and module.removeprefix(f"{PACKAGE}.") not in THREADS:
        names = (node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "") for node in nodes(tree))
        yield from (f"uses {name}" for name in names if name in ("to_thread", "run_in_executor", "ThreadPoolExecutor"))


def long_functions(tree: ast.Module, module: str) -> Iterator[str]:
    for node in nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
            signature = node.body[0].lineno - node.lineno
            lines = signature + (node.end_lineno or 0) - first.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield f"{node.name} has {lines} lines"


def awaits_in_values(tree: ast.Module, module: str) -> Iterator[str]:
    """Yield awaits in the folders of values, which do no I/O."""
    if unit(module) in ("core", "items", "requests", "stream"):
        kinds = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
        yield from (f"waits in line {node.lineno}" for node in nodes(tree) if isinstance(node, kinds))


RULES: Final[dict[str, Rule]] = {
    rule.__name__: rule
    for rule in (
        arrows_back,
        absolute_imports,
        strangers,
        imported_features,
        early_imports,
        state,
        own_threads,
        long_functions,
        awaits_in_values,
    )
}


@pytest.mark.parametrize("rule", RULES)
def test_no_module_breaks_rule(rule: str) -> None:
    broken = [f"{module} {what}" for module, tree in parsed() for what in RULES[rule](tree, module)]
    assert broken == []


def test_every_part_has_layer() -> None:
    for name, layers in LAYERS.items():
        parts = {unit(module, name) for module in MODULES if is_in(module, name)}
        assert parts == set().union(*layers)


def test_root_of_package_has_few_modules() -> None:
    root = ROOTS[PACKAGE]
    assert len([path for path in root.iterdir() if path.is_file()]) <= MAX_ROOT_FILES


def test_imports_have_no_cycles() -> None:
    graph = {
        module: {each for each in imports(tree, module) if each in MODULES and each not in ROOTS}
        for module, tree in parsed()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


# The rules find the violations that they describe.

LONG: Final = "def f():\n" + "    pass\n" * MAX_FUNCTION_LINES


@pytest.mark.parametrize(
    ("rule", "module", "source"),
    [
        ("arrows_back", "core.errors", "from ..chat.profile import Profile"),
        ("arrows_back", "core.errors", "from .. import generation"),
        ("arrows_back", "generation.loop", "from .run import ForegroundRun"),
        ("arrows_back", "generation.loop", "from .. import jobs"),
        ("arrows_back", "chat.chunks", "import llama_stack_responses.store.records"),
        ("arrows_back", "chat.chunks", "def f():\n    from llama_stack_responses.tools.tool import Tool"),
        ("arrows_back", "service.responses", "if TYPE_CHECKING:\n    from ..wire.response_routes import create_router"),
        ("arrows_back", "wire.response_routes", "from ..host.replaced_routes import enter_router"),
        ("strangers", "service.responses", "from llama_stack.core.datatypes import User"),
        ("strangers", "provider", "import llama_stack_api"),
        ("strangers", "wire.response_routes", "def f():\n    import ogx"),
        ("strangers", "chat.inference", "import openai"),
        ("strangers", "tools.toolset", "import mcp"),
        ("strangers", "stream.assembler", "import asyncio"),
        ("strangers", "service.responses", "from fastapi import Request"),
        ("imported_features", "host.replaced_routes", "from ..features.images.tool import ImageTool"),
        ("imported_features", "core.errors", "def f():\n    import llama_stack_responses.features.images.kinds"),
        ("imported_features", "features.images.tool", "from ..moderation.policy import Policy"),
        ("early_imports", "features.images.kinds", "from ...items.registry import ITEM_KINDS"),
        ("early_imports", "features.images.settings", "from ...config import ResponsesConfig"),
        ("state", "service.responses", "cache = {}"),
        ("state", "service.responses", "names = ['a']"),
        ("state", "service.responses", "_RUNS = {}"),
        ("state", "service.responses", "_RUNS: Final[dict[str, ForegroundRun]] = {}"),
        ("state", "service.responses", "_RUNS = dict()"),
        ("state", "service.responses", "_LOCK = asyncio.Lock()"),
        ("state", "service.responses", "_RUNS: Final = weakref.WeakValueDictionary[str, ForegroundRun]()"),
        ("state", "service.responses", "impl = OpenAIResponsesImpl()"),
        ("state", "service.responses", "try:\n    x = [1]\nexcept ImportError:\n    pass"),
        ("state", "service.responses", "class A:\n    seen = []"),
        ("state", "service.responses", "_A = {1: 2}\ndef f():\n    _A[3] = 4"),
        ("state", "service.responses", "_A = {1: 2}\ndef f():\n    _A.update(b=1)"),
        ("state", "service.responses", "_A = {1: 2}\ndef f():\n    del _A[1]"),
        ("state", "service.responses", "_A = 1\ndef f():\n    global _A\n    _A = 2"),
        ("state", "service.responses", "@functools.lru_cache(maxsize=None)\ndef f():\n    pass"),
        ("long_functions", "service.responses", LONG),
        ("own_threads", "service.responses", "async def f():\n    await asyncio.to_thread(g)"),
        ("own_threads", "store.sqlite", "from concurrent.futures import ThreadPoolExecutor\nX = ThreadPoolExecutor(1)"),
        ("awaits_in_values", "stream.assembler", "async def f():\n    pass"),
    ],
)
def test_rule_finds_violation(rule: str, module: str, source: str) -> None:
    assert list(RULES[rule](ast.parse(source), f"{PACKAGE}.{module}"))


@pytest.mark.parametrize(
    ("rule", "module", "source"),
    [
        ("arrows_back", "service.responses", "from ..generation import Turn\nfrom ..core.errors import ApiError"),
        ("arrows_back", "chat.chunks", "from . import profile\nfrom .think_tags import ThinkingSplitter"),
        ("strangers", "host.inference", "import openai"),
        ("imported_features", "features.images.tool", "from .kinds import FORM\nfrom ...feature import Feature"),
        ("early_imports", "features.images.kinds", "from ...items.form import ItemForm\nfrom .names import x"),
        ("early_imports", "features.images.tool", "from ...config import ResponsesConfig"),
        (
            "state",
            "service.responses",
            "_A = {1: 2}\nB: Final = frozenset({1})\nlogger = logging.getLogger(__name__)\n__all__ = ['f']",
        ),
        ("state", "service.responses", "_A = {1: 2}\ndef f(_A):\n    _A[3] = 4"),
        ("state", "service.responses", "Store = Annotated[int, str]\ntype X = int\nx: int = 3"),
        (
            "state",
            "service.responses",
            "@dataclass(slots=True)\nclass A:\n    a: list[int] = field(default_factory=list)",
        ),
        (
            "long_functions",
            "service.responses",
            LONG.replace("    pass\n", "    '''\n    Text.\n    '''\n", 1)[: -len("    pass\n")],
        ),
    ],
)
def test_rule_accepts_valid_code(rule: str, module: str, source: str) -> None:
    assert list(RULES[rule](ast.parse(source), f"{PACKAGE}.{module}")) == []
