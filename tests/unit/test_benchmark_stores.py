"""The benchmark of the stores: its ratios, its percentiles, and what it divides by."""

from benchmarks.flushes import Flushed
from benchmarks.flushes import table as flushes_table
from benchmarks.shares import Share
from benchmarks.shares import table as shares_table
from benchmarks.stores import BASE, CHARACTERS, CLIENTS, Measured, measure, sizes, table
from tests.contract.backends import BACKENDS


def test_each_store_has_a_row_compared_with_the_default() -> None:
    found = {
        (backend.name, name, count): Measured(
            rates=[90.0, 100.0, 500.0] if backend.name == BASE else [10.0, 50.0, 60.0],
            took=[number / 1000 for number in range(1, 101)],
            here=[0.001],
            there=[0.0005] if backend.name == "redis" else [],
        )
        for backend in BACKENDS
        for name in ("save", "load")
        for count in CLIENTS
    }
    lines = table(found)
    assert [line for line in lines if line.startswith("**")] == [
        "**save, 1 client**",
        "**save, 32 clients**",
        "**load, 1 client**",
        "**load, 32 clients**",
    ]
    assert lines.count(f"| {BASE} | 100 | 1.00 | 50.5 ms | 95.0 ms | 1000 µs |  |") == 4
    assert lines.count("| redis | 50 | 0.50 | 50.5 ms | 95.0 ms | 1000 µs | 500 µs |") == 4
    assert sum(line.startswith("| ") for line in lines) == 4 * (2 + len(BACKENDS))


def test_a_share_says_how_many_servers_one_store_carries() -> None:
    lines = shares_table({"redis": {"whole": Share(0.010, 0.0005)}})
    assert "| redis | whole | 10.0 ms | 0.50 ms | 20 |" in lines


def test_a_slow_flush_stands_beside_a_fast_one() -> None:
    took = [number / 1000 for number in range(1, 101)]
    lines = flushes_table({"saves": (Flushed(447.2, took, 0.0812), Flushed(500.0, took, 0.3))})
    assert "| saves | 447 | 50 ms | 95 ms | 0.08 | 500 |" in lines


def test_sizes_are_of_the_text() -> None:
    assert f"| sqlite | {20 * CHARACTERS:,} | 1.00 |" in sizes({"sqlite": 20 * CHARACTERS}, 10)


async def test_calls_are_made_for_as_long_as_asked_and_each_is_counted() -> None:
    made: list[int] = []

    async def call() -> None:
        made.append(1)

    measured = Measured()
    await measure([call, call], 0.01, None, measured)
    assert len(measured.took) == len(made) > 1
    assert (len(measured.rates), len(measured.here), measured.there) == (1, 1, [])
    assert 0 < measured.rates[0] <= len(made) / 0.01
