from hypothesis import given
from hypothesis import strategies as st

from llama_stack_responses.chat.surrogates import SurrogateMender


def halves(text: str) -> list[str]:
    """The UTF-16 units of a text, as a server that cuts between them sends them."""
    units = text.encode("utf-16-le", "surrogatepass")
    return [units[at : at + 2].decode("utf-16-le", "surrogatepass") for at in range(0, len(units), 2)]


@given(st.text())
def test_characters_cut_in_two_come_out_whole(text: str) -> None:
    mender = SurrogateMender()
    assert "".join(mender.feed("content", piece) for piece in halves(text)) == text


@given(st.lists(st.text(st.characters(categories=("Lu", "Cs")), min_size=1)))
def test_what_comes_out_can_be_encoded(pieces: list[str]) -> None:
    mender = SurrogateMender()
    for piece in pieces:
        mender.feed("content", piece).encode()


def test_streams_do_not_mix() -> None:
    mender = SurrogateMender()
    assert mender.feed("content", "a\ud83d") == "a"
    assert mender.feed("reasoning", "\ude00") == "\ufffd"
    assert mender.feed("content", "\ude00b") == "\U0001f600b"
