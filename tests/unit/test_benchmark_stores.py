"""The benchmark of the stores: its ratios, percentiles and divisors."""

from benchmarks.flushes import Flushed
from benchmarks.flushes import table as flushes_table
from benchmarks.shares import Share
from benchmarks.shares import table as shares_table
from benchmarks.stores import BASE, CHARACTERS, CLIENTS, Measured, measure, sizes, table
from tests.contract.backends import BACKENDS


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_each_store_has_row_compared_with_default() -> None:
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
    assert sum(line.startswith("**") for line in lines) == 4
    assert [cells(line)[1:3] for line in lines if line.startswith(f"| {BASE} ")] == [["100", "1.00"]] * 4
    assert [cells(line)[1:3] for line in lines if line.startswith("| redis ")] == [["50", "0.50"]] * 4
    assert sum(line.startswith("| ") for line in lines) == 4 * (2 + len(BACKENDS))


def test_share_gives_number_of_servers_that_one_store_supports() -> None:
    lines = shares_table({"redis": {"whole": Share(0.010, 0.0005)}})
    assert [cells(line)[-1] for line in lines if line.startswith("| redis ")] == ["20"]


def test_slow_flush_is_shown_next_to_fast_one() -> None:
    took = [number / 1000 for number in range(1, 101)]
    lines = flushes_table(
        {"saves": (Flushed(447.2, took, 0.0812, 0.002, 0.001), Flushed(500.0, took, 0.3, 0.002, 0.001))}
    )
    [found] = [cells(line) for line in lines if line.startswith("| saves ")]
    assert (found[1], found[-1]) == ("447", "500")
    assert found[5:8] == ["2.00 ms", "1.00 ms", "500"]


def test_sizes_are_relative_to_text() -> None:
    [found] = [cells(line) for line in sizes({"sqlite": 20 * CHARACTERS}, 10) if line.startswith("| sqlite ")]
    assert found[-1] == "1.00"


async def test_measure_runs_for_given_time_and_counts_every_call() -> None:
    created: list[int] = []

    async def call() -> None:
        created.append(1)

    measured = Measured()
    await measure([call, call], 0.01, None, measured)
    assert len(measured.took) == len(created) > 1
    assert (len(measured.rates), len(measured.here), measured.there) == (1, 1, [])
    assert 0 < measured.rates[0] <= len(created) / 0.01
