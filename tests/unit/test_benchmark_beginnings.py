"""The table of the benchmark of streams that begin at once."""

from __future__ import annotations

from benchmarks.beginnings import table


def test_ratios_are_those_of_the_same_round() -> None:
    relay = [(0.1, 0.01, 1e-4), (1.0, 0.01, 1e-4), (0.2, 0.02, 2e-4), (0.4, 0.01, 1e-4)]
    text = [(0.5, 0.1, 1e-3), (6.0, 0.2, 2e-3), (1.4, 0.1, 2e-3), (1.6, 0.1, 1e-3)]
    lines = table({"256": {"relay": relay, "text": text}}).splitlines()

    assert "| relay | 256 | 300 ms | 1.0 | 1.0 to 1.0 | 10 ms | 1.0 | 1.0 to 1.0 | 100 µs | 1.0 | 1.0 to 1.0 |" in lines
    assert (
        "| text | 256 | 1,500 ms | 5.5 | 5.0 to 6.0 | 100 ms | 10.0 | 10.0 to 10.0 | 1,500 µs | 10.0 | 10.0 to 10.0 |"
        in lines
    )
