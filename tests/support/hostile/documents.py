"""Documents that take long to read, and files with unusual names and types."""

from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any, Final

from tests.support.pdf import pdf, pdf_bomb, slow_pdf
from tests.support.waiting import wait_until
from tests.support.web import Answer

from .attacker import DONE, Attacker, Attacks, judged, refused
from .pages import PUNYCODE

ATTACKS: Final = Attacks()


def attached(content: bytes, name: str, media_type: str) -> Any:
    """Return a file part of a request."""
    return {
        "type": "input_file",
        "filename": name,
        "file_data": f"data:{media_type};base64,{b64encode(content).decode()}",
    }


@ATTACKS.add(one=1, many=12)
def slow_documents(at: Attacker, case: int) -> None:
    """Reading ends at the limit on the time of one file, or at that of all files of the request."""
    slow = slow_pdf(2_000_000)
    files = [attached(slow + b"%d" % number, f"{number}.pdf", "application/pdf") for number in range(case)]
    assert "seconds" in refused(at.ask(*files))["message"]


@ATTACKS.add()
def document_that_is_a_decompression_bomb(at: Attacker) -> None:
    """The limit on memory, and that of the library, end the reading."""
    refused(at.ask(attached(pdf_bomb(300_000_000), "a.pdf", "application/pdf")))


@ATTACKS.add(files="input_file", images="input_image")
def files_of_many_requests_that_stall_while_they_are_fetched(at: Attacker, case: str) -> None:
    resume, many = Event(), 40
    for number in range(4):
        at.web.answers[f"/{number}"] = Answer([bytes(3 * 2**20), resume])
    at.upstream.script("offline", DONE)
    field = "file_url" if case == "input_file" else "image_url"
    parts = [{"type": case, field: at.web.url(f"/{number}")} for number in range(4)]
    with ThreadPoolExecutor(many) as pool:
        pending = [pool.submit(at.ask, *parts, model="local/offline") for _ in range(many)]
        try:
            # Accepted requests wait for the rest of their files.
            wait_until(lambda: sum(each.done() for each in pending) >= many - 8)
            at.others_turn()
        finally:
            resume.set()
    answers = [each.result() for each in pending]
    for answer in answers:
        refused(answer, 400, 429)
    assert sum(answer.status_code == 429 for answer in answers) >= many - 8


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
    answers = [at.ask(attached(content, "a.txt", case)) for content in (PUNYCODE, PUNYCODE[:60_000])]
    for answer in answers:
        judged(answer)
        assert "seconds" not in answer.text
