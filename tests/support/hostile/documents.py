"""Documents that take long to read, and files whose names and types are odd."""

from base64 import b64encode
from typing import Any, Final

from tests.support.pdf import pdf, pdf_bomb

from .attacker import Attacker, Attacks, judged, refused
from .pages import PUNYCODE

ATTACKS: Final = Attacks()


def attached(content: bytes, name: str, media_type: str) -> Any:
    """A file in a request."""
    return {
        "type": "input_file",
        "filename": name,
        "file_data": f"data:{media_type};base64,{b64encode(content).decode()}",
    }


@ATTACKS.add(one=1, many=12)
def slow_documents(at: Attacker, case: int) -> None:
    slow = pdf_bomb(300_000_000)
    files = [attached(slow + b"%d" % number, f"{number}.pdf", "application/pdf") for number in range(case)]
    refused(at.ask(*files))


@ATTACKS.add(
    cut=pdf("A page.")[:-200],
    no_pdf=b"%PDF-1.7\n" + b"x" * 1_000_000,
    objects=b"%PDF-1.4\n" + b"1 0 obj\n<<" * 200_000,
    references=b"%PDF-1.4\n1 0 obj\n1 0 R\nendobj\ntrailer<</Root 1 0 R>>\nstartxref\n9\n%%EOF",
    deep=b"%PDF-1.4\n1 0 obj\n" + b"[" * 500_000 + b"\ntrailer<</Root 1 0 R>>\nstartxref\n9\n%%EOF",
)
def broken_documents(at: Attacker, case: bytes) -> None:
    judged(at.ask(attached(case, "a.pdf", "application/pdf")))


@ATTACKS.add(
    punycode="text/plain;charset=punycode",
    idna="text/plain;charset=idna",
    utf_7="text/plain;charset=utf-7",
    codec="text/plain;charset=bz2",
    unknown="text/html;charset=" + "x" * 10_000,
    no_type="x" * 10_000,
)
def text_file_in_an_odd_charset(at: Attacker, case: str) -> None:
    judged(at.ask(attached(PUNYCODE, "a.txt", case)))
