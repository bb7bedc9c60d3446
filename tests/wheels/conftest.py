"""Report the Pythons that the wheels are tried on."""


def pytest_report_header() -> list[str]:
    """Return a line for each Python version."""
    from tests.wheels.pythons import FOUND, PYTHONS  # it starts each Python, which runs without these tests do not need

    return [f"Python {version}: {FOUND.get(version, 'not installed, so not tried')}" for version in PYTHONS]
