"""Settings of the templates that the host reads."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
import yaml

TEMPLATES: Final = sorted((Path(__file__).parents[2] / "templates").glob("*/config.yaml"))


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.parent.name)
def test_template_has_no_port_since_llama_stack_ignores_it(template: Path) -> None:
    assert "port" not in yaml.safe_load(template.read_text())["server"]


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.parent.name)
def test_template_starts_as_many_processes_as_the_variable_says(template: Path) -> None:
    assert yaml.safe_load(template.read_text())["server"]["workers"] == "${env.WORKERS:=1}"
