"""Report the Pythons that the wheels are tried on."""

from tests.wheels.pythons import FOUND, PYTHONS


def pytest_report_header() -> list[str]:
    """Return a line for each Python version."""
    return [f"Python {version}: {FOUND.get(version, 'not installed, so not tried')}" for version in PYTHONS]
