"""Servers that are stopped and started again under load, behind the nginx of the template."""

from pathlib import Path

import pytest

from benchmarks.replacement import CI, TEMPLATES, run

# The signals and the web server do not depend on the host.
pytestmark = [pytest.mark.live, pytest.mark.extended, pytest.mark.one_host]


@pytest.mark.parametrize("store", TEMPLATES)
def test_no_request_fails_while_servers_are_replaced(store: str, tmp_path: Path) -> None:
    verdict = run(CI, store, "llama_stack", tmp_path)
    assert verdict.sent > 100
    assert verdict.well, verdict
