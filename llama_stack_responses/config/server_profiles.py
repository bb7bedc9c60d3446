"""Profiles of model servers as data: those of this package, and the operator's on top."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ..chat.adaptation.adaptation import Step
from ..chat.inference import ModelServer
from ..chat.profile import Dialect, Parameters, steps_of
from ..core.setting_values import WrongConfiguration
from .unknown_settings import explained
from .yaml_text import parsed_yaml

_PACKAGED: Final = "model_servers.yaml"


def _url(source: str) -> str:
    if not source.startswith(("https://", "http://")):
        raise ValueError("a source is a URL")
    return source


class ServerProfile(BaseModel):
    """How chat requests are changed for a model server.

    Attributes:
        name: its name; an entry of the operator's file replaces that of this package with the same name.
        servers: shell-style patterns for the type of the provider (`remote::groq`), the host and port of its URL
            (`api.groq.com:443`), or its id in the stack; one of them has to match one of these.
        models: patterns for the model's name at the server, one of which has to match.
        source: where this is known from.
        note: what else is known.
        parameters: changes of parameters.
        dialect: names of other changes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    servers: list[str] = Field(default_factory=list)
    models: list[str] = Field(default_factory=lambda: ["*"])
    source: Annotated[str, AfterValidator(_url)] | None = None
    note: str | None = None
    parameters: Parameters = Field(default_factory=Parameters)
    dialect: list[Dialect] = Field(default_factory=list)

    def fits(self, server: ModelServer, model: str) -> bool:
        """Return whether the profile is for this model of a model server."""
        names = [each.lower() for each in (server.kind, server.address, server.provider) if each]
        model = model.removeprefix(f"{server.provider}/").lower()
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.servers) and any(
            fnmatchcase(model, pattern) for pattern in self.models
        )


_ENTRIES: Final = TypeAdapter(list[ServerProfile])


class ServerProfiles:
    """All profiles of model servers.

    Args:
        path: the operator's file; None for none.

    Raises:
        WrongConfiguration: the file cannot be read, or has an invalid entry; the text says which.
    """

    def __init__(self, path: Path | None = None) -> None:
        packaged = files(__package__).joinpath(_PACKAGED).read_text()
        entries = _ENTRIES.validate_python(parsed_yaml(packaged))
        self.entries = {each.name: each for each in [*entries, *(_read(path) if path else [])]}

    def steps(self, server: ModelServer, model: str) -> list[Step]:
        """Return the changes for a model of a model server."""
        fitting = [each for each in self.entries.values() if each.fits(server, model)]
        return [step for each in fitting for step in steps_of(each.parameters, each.dialect)]


def merged(steps: Sequence[Step]) -> list[Step]:
    """Return the changes without those that a later one replaces: of the same parameter, or the same value of it."""
    latest = {_place(step): step for step in steps}
    return list(latest.values())


def _place(step: Step) -> Any:
    """Return what a change is about."""
    match step.kind, step.argument:
        case "map", (name, value, _):
            return step.kind, name, value
        case "rename" | "add", (name, _):
            return step.kind, name
    return step


def _read(path: Path) -> list[ServerProfile]:
    try:
        return _ENTRIES.validate_python(parsed_yaml(path.expanduser().read_text()) or [])
    except (OSError, yaml.YAMLError) as error:
        raise WrongConfiguration(f"'profiles_file' cannot be read: {error}") from None
    except ValidationError as error:
        first = explained(ServerProfile, error).errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise WrongConfiguration(f"'profiles_file' has an invalid entry: {place}: {first['msg']}") from None
