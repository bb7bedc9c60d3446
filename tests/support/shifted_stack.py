"""A stack whose wall clock can be shifted while it runs."""

import os
from collections.abc import Mapping
from pathlib import Path

from tests.support.stack import REPOSITORY, Host, LiveStack
from tests.support.variants import responses_config, variant


def shifted(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which clocks can be shifted."""
    folders = (str(REPOSITORY / "tests" / "support" / "shifted_clock"), env["PYTHONPATH"])
    return {**env, "PYTHONPATH": os.pathsep.join(folders)}


class ShiftedStack(LiveStack):
    """A stack whose wall clock can be shifted while it runs, and that sweeps all the time.

    Its fork server has the environment of `shifted`.
    """

    def __init__(self, template: Path, env: dict[str, str], state_dir: Path, host: Host) -> None:
        """Prepare a stack. `template` is its configuration."""
        config = variant(template, state_dir / "config.yaml", _sweep_all_the_time)
        self._shift = state_dir / "shift"
        super().__init__(config, shifted(env) | {"CLOCK_SHIFT_FILE": str(self._shift)}, state_dir, host=host)
        self.shift(0)

    def shift(self, seconds: float) -> None:
        """Shift its clock, in one step."""
        new = self._shift.with_suffix(".new")
        new.write_text(str(seconds))
        new.replace(self._shift)

    def logged(self) -> str:
        """Return its log, in one line."""
        return " ".join(self.log.read_text(errors="replace").split())


def _sweep_all_the_time(config: dict[str, object]) -> None:
    responses_config(config)["sweep_seconds"] = 0.05
