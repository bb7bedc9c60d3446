"""A container for the code of models: a process in a jail, with limits and a folder of files.

`jail.py` isolates it, `seccomp.py` filters its system calls, `control_group.py`, `processes.py` and `volume.py` limit
what it uses.
"""

from __future__ import annotations

from typing import Final

DATA: Final = "/mnt/data"
"""Where the code finds its files, as in OpenAI's containers."""
