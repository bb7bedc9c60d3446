"""The alerts of the template, tested by Prometheus' own tool."""

import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.support.stack import REPOSITORY

MONITORING: Final = REPOSITORY / "templates" / "monitoring"
PROMTOOL: Final = REPOSITORY / ".promtool" / "promtool"


def promtool(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the tool in a folder."""
    assert PROMTOOL.exists(), "there is no promtool: make promtool"
    return subprocess.run([PROMTOOL, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=120)


def test_each_alert_fires_on_its_trouble_and_none_without() -> None:
    tested = promtool("test", "rules", "alerts_test.yml", folder=MONITORING)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_configuration_of_prometheus_is_valid() -> None:
    checked = promtool("check", "config", "prometheus.yml", folder=MONITORING)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def names() -> list[str]:
    """Return the names of the alerts."""
    [group] = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    return [rule["alert"] for rule in group["rules"]]


@pytest.mark.extended
@pytest.mark.parametrize("name", names())
def test_case_of_each_alert_fails_without_it(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "monitoring"
    shutil.copytree(MONITORING, folder)
    rules = yaml.safe_load((folder / "alerts.yml").read_text())
    rules["groups"][0]["rules"] = [rule for rule in rules["groups"][0]["rules"] if rule["alert"] != name]
    (folder / "alerts.yml").write_text(yaml.safe_dump(rules))
    tested = promtool("test", "rules", "alerts_test.yml", folder=folder)
    assert tested.returncode != 0
    assert name in tested.stdout + tested.stderr
