"""Prints a failure as soon as it happens, so that a run that is cut off still says what failed.

pytest alone prints failures at the end of a run.
"""

import pytest

MAX_REASON = 300
"""Characters of the reason that are printed."""


class Failures:
    """A plugin for the process that prints: without pytest-xdist the only one, with it the one that has the workers.

    Args:
        reporter: prints the lines.
    """

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print a failed phase of a test: its node id, the phase, the place, and the first line of the reason."""
        if report.failed:
            self._reporter.ensure_newline()
            self._reporter.write_line(f"FAILED NOW {report.nodeid} ({report.when}) {reason(report)}", red=True)
            self._reporter.flush()


def reason(report: pytest.TestReport) -> str:
    """Return where a test failed, and the first line of its error; the last line of a report without a traceback."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        return f"{crash.path}:{crash.lineno}: {crash.message.strip().partition('\n')[0]}"[:MAX_REASON]
    return report.longreprtext.strip().rpartition("\n")[2][:MAX_REASON]


def print_failures(config: pytest.Config) -> None:
    """Register the plugin in a process that prints. pytest-xdist's workers do not."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        config.pluginmanager.register(Failures(reporter), "failures")
