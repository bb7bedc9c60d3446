from hypothesis import given
from hypothesis import strategies as st

from llama_stack_responses.chat.split_surrogates import SurrogateJoiner


def halves(text: str) -> list[str]:
    """Return the UTF-16 units of a text, as sent by a server that cuts between them."""
    units = text.encode("utf-16-le", "surrogatepass")
    return [units[at : at + 2].decode("utf-16-le", "surrogatepass") for at in range(0, len(units), 2)]


@given(st.text())
def test_surrogate_pairs_cut_in_two_are_joined(text: str) -> None:
    joiner = SurrogateJoiner()
    assert "".join(joiner.feed("content", piece) for piece in halves(text)) == text


@given(st.lists(st.text(st.characters(categories=("Lu", "Cs")), min_size=1)))
def test_output_of_surrogate_mender_can_be_encoded(pieces: list[str]) -> None:
    joiner = SurrogateJoiner()
    for piece in pieces:
        joiner.feed("content", piece).encode()


def test_surrogates_of_separate_streams_are_not_joined() -> None:
    joiner = SurrogateJoiner()
    assert joiner.feed("content", "a\ud83d") == "a"
    assert joiner.feed("reasoning", "\ude00") == "\ufffd"
    assert joiner.feed("content", "\ude00b") == "\U0001f600b"
