"""The Pythons that the wheels are tried on."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

PYTHONS: Final = ("3.12", "3.13", "3.14")


def find_python(version: str) -> str | None:
    """Return a working Python of this version, from PATH, from pyenv or from uv."""
    roots = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*"))
    for found in (shutil.which(f"python{version}"), *(str(root / "bin" / "python") for root in roots), _of_uv(version)):
        if found and subprocess.run([found, "-c", "import venv"], capture_output=True, check=False).returncode == 0:
            return found
    return None


def _of_uv(version: str) -> str:
    command = [sys.executable, "-m", "uv", "python", "find", "--no-python-downloads", "--managed-python", version]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


FOUND: Final = {version: found for version in PYTHONS if (found := find_python(version))}
