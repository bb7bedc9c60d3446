"""The small model of `make demo` and `make serve`. `test_documented.py` runs both."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import httpx

from tests.support.process import Child
from tests.support.stack import REPOSITORY

UNENDING = 'root ::= "hello " root'
LIMITED = "import llama_server; llama_server.ANSWER_TOKENS = 24; llama_server.serve(0)"
"""The server with a limit that it reaches at once; with its own, it works for ten seconds."""


def test_demo_model_stops_at_its_own_token_limit(tmp_path: Path) -> None:
    log = tmp_path / "llama.log"
    child = Child([sys.executable, "-c", LIMITED], log=log, cwd=REPOSITORY / "demo")
    try:
        url = child.wait_ready(lambda: listening(log), seconds=120)
        request = {"messages": [{"role": "user", "content": "Say hello."}], "grammar": UNENDING}
        found = httpx.post(
            f"{url}/v1/chat/completions", json=request, timeout=240, trust_env=False, verify=False
        ).json()
    finally:
        child.stop()
    assert found["usage"]["completion_tokens"] == 24
    assert found["choices"][0]["finish_reason"] == "length"


def listening(log: Path) -> str | None:
    match = re.search(r"^listening on (\S+)$", log.read_text(errors="replace"), re.MULTILINE)
    return match and match[1]
