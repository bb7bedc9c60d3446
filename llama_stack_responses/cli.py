"""The command `llama-stack-responses`.

It writes the files of a template, including a config.yaml for `llama stack run`, checks such a file, imports
conversations and responses that the host stored, and has the commands of the features.
"""

import argparse
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from io import TextIOWrapper, UnsupportedOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .commands.command_error import CommandError
from .commands.config_option import DEFAULT_CONFIG, add_config
from .commands.interrupts import STATUS as INTERRUPTED
from .commands.interrupts import end_in_order
from .core.discovery import feature_names, modules_of_features
from .installed_host import InstalledHost, installed_host, wrong_mcp

if TYPE_CHECKING:
    from .commands.host_data import HostData
    from .config import ResponsesConfig
    from .core.owner import Owner
    from .store.records import Records

PACKAGE = Path(__file__).parent

_PIPE_CLOSED = 128 + signal.SIGPIPE
"""Exit status of a command whose output is closed."""


def templates_folder() -> Path:
    """Return the folder of the templates: in the package if it is installed, next to it in a checkout."""
    installed = PACKAGE / "templates"
    return installed if installed.is_dir() else PACKAGE.parent / "templates"


def template_names() -> list[str]:
    """Return the names of all templates that `init` can write."""
    return sorted(path.name for path in templates_folder().iterdir() if path.is_dir())


def write_template(name: str, folder: Path, *, force: bool) -> list[Path]:
    """Write the template's files into `folder`, creating it if necessary. Return their paths."""
    if name not in template_names():
        raise CommandError(f"There is no template {name!r}; choose one of: {', '.join(template_names())}.")
    sources = sorted((templates_folder() / name).iterdir())
    targets = [folder / source.name for source in sources]
    if not force and (there := [target for target in targets if target.exists()]):
        raise CommandError(f"{there[0]} already exists; use --force to overwrite it, or choose another folder.")
    for source, target in zip(sources, targets, strict=True):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
        except OSError as error:
            raise CommandError(f"Cannot write {target}: {error.strerror or error}.") from error
    return targets


def init(arguments: argparse.Namespace) -> None:
    """Run `llama-stack-responses init`."""
    written = write_template(arguments.template, arguments.dir, force=arguments.force)
    config = arguments.dir / "config.yaml"
    if config not in written:
        print(f"Wrote {', '.join(map(str, written))}.")
        return
    print(f"Wrote {', '.join(map(str, written))}. The first lines name the settings.")
    host = installed_host()
    missing = [*_missing_provider(config), *_missing_host(host)]
    for sentence in missing:
        print(sentence)
    if host:
        start = "Then start" if missing else "Start"
        print(f"{start} it with:\n\n  {host.run(shlex.quote(str(config)))}")


def _missing_host(host: InstalledHost | None) -> list[str]:
    if host is None:
        return [
            "Neither llama-stack nor OGX is installed here: "
            "pip install 'llama-stack-responses[llama-stack]', or pip install 'llama-stack-responses[ogx]'."
        ]
    wrong = wrong_mcp(host)
    return [wrong] if wrong else []


def _missing_provider(config: Path) -> list[str]:
    if "module: llama_stack_gpt_oss" not in config.read_text() or find_spec("llama_stack_gpt_oss"):
        return []
    return [
        "It needs the package llama-stack-gpt-oss, which is not installed here: "
        "pip install llama-stack-gpt-oss, or in a checkout of this project pip install ./providers/gpt_oss."
    ]


def _import_host() -> None:
    """Import the installed host. The modules of `host/` take its names from the package that is imported already."""
    host = installed_host()
    if host is None:
        raise CommandError("Neither llama-stack nor OGX is installed here: run this where the stack runs.", 2)
    if wrong := wrong_mcp(host):
        raise CommandError(wrong, 2)
    import_module(host.package)


def open_store(config: Path, *, new: bool) -> "tuple[Records, ResponsesConfig]":
    """Open the store that a stack's configuration names (`OpenStore`): with the host only if it has to be."""
    from .commands.opened_store import CHECK_STATE
    from .config.stack_file import quick_settings
    from .config.stores import HostStore
    from .core.setting_values import WrongConfiguration
    from .store.factory import open_records
    from .store.tiers import with_tiers

    if settings := quick_settings(config, os.environ):
        try:
            return with_tiers(open_records(settings.store, _no_backend), settings), settings
        except WrongConfiguration as error:
            raise CommandError(str(error), 2) from error
    _import_host()
    from .host.configuration import MissingFile, open_configured

    try:
        records, settings = open_configured(config, new=new)
    except WrongConfiguration as error:
        raise CommandError(str(error), 2) from error
    except MissingFile as error:
        raise CommandError(f"There is no store {error}: {CHECK_STATE}.") from error
    if isinstance(settings.store, HostStore):
        print("The store 'host' is for one process: stop the server first.", file=sys.stderr)
    return records, settings


@asynccontextmanager
async def open_host_data(config: Path, owner: "Owner") -> "AsyncIterator[HostData]":
    """Open the files, prompts and chats that the host keeps for users (`OpenHostData`)."""
    _import_host()
    from .host.user_data import open_user_data

    async with open_user_data(config, owner) as found:
        yield found


def _no_backend(name: str) -> Any:
    raise AssertionError(f"the host opens its own store {name}")


def check(arguments: argparse.Namespace) -> None:
    """Run `llama-stack-responses check`."""
    _import_host()
    from .core.setting_values import WrongConfiguration
    from .host.configuration import check_stack

    path = arguments.file or arguments.config
    try:
        check_stack(path)
    except WrongConfiguration as error:
        raise CommandError(str(error), 2) from error
    print(f"Nothing is wrong in {path}.")


def import_stored(arguments: argparse.Namespace) -> None:
    """Run `llama-stack-responses import`."""
    file, option = arguments.file, arguments.config
    if file and option and file != option:
        raise CommandError(
            f"{file} and --config {option} both name the configuration whose store is imported into: give one, and the "
            "configuration of an old stack as --from OLD.",
            2,
        )
    _import_host()
    from .host.import_command import import_from
    from .service.conversation_import import ImportImpossible

    end_in_order()
    try:
        print(import_from(file or option or DEFAULT_CONFIG, arguments.was, lambda line: print(line, file=sys.stderr)))
    except ImportImpossible as error:
        raise CommandError(str(error), 2) from error


def build_parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Build the parser of the command line.

    Args:
        words: the command line, whose command is checked.

    Raises:
        CommandError: there is no such command.
    """
    parser = argparse.ArgumentParser(
        prog="llama-stack-responses", description="The OpenAI Responses API for Llama Stack, on your own models."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {version('llama-stack-responses')}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_init(commands)
    _add_check(commands)
    _add_import(commands)
    for module in modules_of_features("commands").values():
        module.add_commands(commands)
    for each in commands.choices.values():
        each.set_defaults(command=each, open_store=open_store, open_host_data=open_host_data)
    _refuse_unknown(words, commands.choices)
    return parser


def _add_init(commands: Any) -> None:
    command = commands.add_parser(
        "init", help="write a template's files into a folder", description="Write a template's files."
    )
    command.add_argument("template", metavar="TEMPLATE", help=f"one of: {', '.join(template_names())}")
    command.add_argument("dir", metavar="DIR", type=Path, help="the folder to write to; it is created if missing")
    command.add_argument("--force", action="store_true", help="overwrite files that are already there")
    command.set_defaults(run=init)


def _add_check(commands: Any) -> None:
    command = commands.add_parser(
        "check",
        help="say what is wrong in a configuration, before a stack is started with it",
        description="Say what is wrong in a configuration and its variables, with the lines. The host's own command "
        "ends with a traceback if it cannot read a part that is its own.",
    )
    command.add_argument("file", nargs="?", metavar="CONFIG", type=Path, help="the same as --config CONFIG")
    add_config(command)
    command.set_defaults(run=check)


def _add_import(commands: Any) -> None:
    command = commands.add_parser(
        "import",
        help="copy what the host's builtin provider stored into the store of the responses provider",
        description="Copy the host's conversations and responses that are not in this store yet.",
    )
    command.add_argument("file", nargs="?", metavar="CONFIG", type=Path, help="the same as --config CONFIG")
    add_config(command)
    command.add_argument(
        "--from",
        dest="was",
        metavar="OLD",
        type=Path,
        help="the config.yaml with the entry of the builtin provider, if its responses were not in the table "
        "'responses' of the backend 'sql_default'",
    )
    command.set_defaults(run=import_stored, config=None)  # None: the option was not given


def _refuse_unknown(words: Sequence[str], names: Collection[str]) -> None:
    """Refuse a command that no feature brings. The program itself has no options with values."""
    command = next((word for word in words if not word.startswith("-")), None)
    if command is not None and command not in names:
        here = f"the commands of this installation are {', '.join(names)}"
        raise CommandError(
            f"There is no command {command!r}: {here}, and its features are {', '.join(feature_names()) or 'none'}.", 2
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        0 on success, 1 on failure, 2 if the usage is wrong or an import is impossible, 130 after Ctrl-C, 141 if the
        reader of the output has closed it.
    """
    _prepare_output()
    try:
        words = sys.argv[1:] if argv is None else argv
        arguments, unknown = build_parser(words).parse_known_args(words)
        if unknown:
            # `parse_args` would print the usage of the whole program, without the options of the command.
            arguments.command.error(f"unrecognized arguments: {' '.join(unknown)}")
        arguments.run(arguments)
        sys.stdout.flush()
    except CommandError as error:
        print(f"llama-stack-responses: {error}", file=sys.stderr)
        return error.code
    except ModuleNotFoundError as error:
        print(f"llama-stack-responses: {_not_installed(error)}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader, such as `head`, has enough.
        _drop_output()
        return _PIPE_CLOSED
    except OSError as error:
        _drop_output()
        what = error.filename or "the output"
        print(f"llama-stack-responses: Cannot use {what}: {error.strerror or error}.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _not_installed(error: ModuleNotFoundError) -> str:
    package = (error.name or "").partition(".")[0]
    if package in ("", PACKAGE.name):
        raise error
    return (
        f"The package {package} is not installed here: pip install 'llama-stack-responses[llama-stack]', or "
        "pip install 'llama-stack-responses[ogx]'."
    )


def _prepare_output() -> None:
    """Let a command print what the terminal's encoding lacks as `?`, and let it run where its output is closed."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - until the process ends
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _drop_output() -> None:
    """Drop what is not printed yet: at its end, Python would flush standard output once more."""
    with suppress(UnsupportedOperation):  # it is not a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
