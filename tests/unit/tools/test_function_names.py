"""Function names for the model."""

from __future__ import annotations

import pytest

from llama_stack_responses.tools.function_names import free_name


class CountingNames(set[str]):
    """Names that are taken, with the number of questions whether one is."""

    lookups = 0

    def __contains__(self, name: object) -> bool:
        self.lookups += 1
        return super().__contains__(name)


@pytest.mark.parametrize("names", [["lookup"] * 500, [f"{'x' * 60}{number:04}" for number in range(500)]])
def test_each_of_many_equal_names_gets_its_number_at_once(names: list[str]) -> None:
    taken, numbers = CountingNames(names), dict[str, int]()
    given = []
    for name in names:
        given.append(free_name(name, taken, numbers))
        taken.add(given[-1])
    assert len(set(given) - set(names)) == 500
    assert max(map(len, given)) <= 64
    assert taken.lookups <= 1_100


def test_taken_number_is_skipped() -> None:
    numbers: dict[str, int] = {}
    assert free_name("a", {"b"}, numbers) == "a"
    assert [free_name("a", {"a", "a_2"}, numbers), free_name("a", {"a", "a_2", "a_3"}, numbers)] == ["a_3", "a_4"]
