"""Metrics of the engines in a folder, for people and metric collectors.

    python -m llama_stack_gpt_oss.process.status STATE_DIR

prints a line of JSON for each serving engine, with the fields of `Metrics`.
"""

import json
import socket
import sys
from pathlib import Path
from typing import Any

from .frames import line
from .settings import address

ANSWER_SECONDS = 30.0


def read_metrics(path: Path, seconds: float = ANSWER_SECONDS) -> dict[str, Any]:
    """Request the metrics of the engine at a socket; OSError if there is none, TimeoutError if it does not answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(seconds)
        with address(path) as name:
            connection.connect(name)
        connection.sendall(line({"metrics": 0}))
        for text in connection.makefile():
            frame = json.loads(text)
            if "metrics" in frame:
                return dict(frame["metrics"])
    raise ConnectionError(f"{path} was closed without an answer")


def main(folder: Path) -> int:
    """Print the metrics; return the exit status: 1 if no engine answers."""
    count = 0
    for path in sorted(folder.glob("engine-*.sock")):
        try:
            metrics = read_metrics(path)
        except OSError:
            continue  # the socket was left by a killed engine
        count += 1
        sys.stdout.write(json.dumps({"engine": path.stem, **metrics}) + "\n")
    return 0 if count else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).expanduser()))
