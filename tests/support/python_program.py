"""Run a Python program as `python PROGRAM ARGUMENTS...` does, in a fork that has its imports (`forks.py`).

python_program.py PROGRAM ARGUMENTS...
"""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
