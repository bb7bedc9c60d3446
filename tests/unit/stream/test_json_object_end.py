"""When a JSON object that arrives in fragments is complete."""

import json
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from llama_stack_responses.stream.json_object_end import JsonObjectEnd

VALUES = st.recursive(st.text('{}[]"\\a', max_size=4) | st.integers(), lambda inner: st.lists(inner, max_size=3))


@given(st.dictionaries(st.text('{"\\', max_size=3), VALUES, max_size=3), st.randoms())
def test_object_is_complete_with_its_last_character(value: dict[str, object], random: Random) -> None:
    characters = json.dumps(value, ensure_ascii=False)
    cuts = sorted({random.randrange(len(characters)) for _ in range(3)} | {0})
    pieces = [characters[start:end] for start, end in zip(cuts, [*cuts[1:], None], strict=True)]
    whole, fragments = JsonObjectEnd(), list[str]()
    for piece in [*pieces[:-1], pieces[-1][:-1]]:
        fragments.append(piece)
        assert not whole.reached(fragments)
    fragments.append(characters[-1])
    assert whole.reached(fragments)


def test_text_without_object_is_never_complete() -> None:
    assert not JsonObjectEnd().reached(["", "12", '"{}"', " "])


def test_megabytes_of_earlier_fragments_are_read_in_several_calls() -> None:
    fragments = ['{"a": [' + "[]," * 5_000, "[]]", "}"]
    whole = JsonObjectEnd()
    assert [whole.reached(fragments) for _ in range(3)] == [False, True, True]
