"""Small real PDF files.

pdf("First page.", "Second page.")
encrypted(pdf("Secret."), "password")
"""

import io
import zlib

import pypdf


def pdf(*pages: str, before: bytes = b"") -> bytes:
    """Return a PDF with a line of text on each page."""
    streams = [f"BT /F1 12 Tf 20 100 Td ({text}) Tj ET".encode("latin-1") for text in pages]
    return _whole([zlib.compress(stream) for stream in streams], before)


def pdf_bomb(size: int) -> bytes:
    """Return a PDF whose only page is a thousand times larger than the file."""
    return _whole([zlib.compress(b" " * size, 9)])


def slow_pdf(operators: int) -> bytes:
    """Return a PDF whose only page shows a letter with each of these operators; a million take about a minute."""
    return _whole([zlib.compress(b"BT /F1 12 Tf " + b"(a) Tj " * operators + b"ET", 9)])


def encrypted(content: bytes, password: str, owner: str = "owner") -> bytes:
    """Encrypt a PDF with a password; with an empty one, anyone can open it."""
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(content))
    writer.encrypt(password, owner, algorithm="AES-256")
    written = io.BytesIO()
    writer.write(written)
    return written.getvalue()


def _whole(streams: list[bytes], before: bytes = b"") -> bytes:
    numbers = [4 + 2 * place for place in range(len(streams))]
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[%s]/Count %d>>" % (b" ".join(b"%d 0 R" % each for each in numbers), len(numbers)),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>",
    ]
    for number, stream in zip(numbers, streams, strict=True):
        resources = b"/Resources<</Font<</F1 3 0 R>>>>"
        objects.append(b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 300 200]%s/Contents %d 0 R>>" % (resources, number + 1))
        objects.append(b"<</Filter/FlateDecode/Length %d>>stream\n%s\nendstream" % (len(stream), stream))
    document, offsets = before + b"%PDF-1.4\n", []
    for number, each in enumerate(objects, 1):
        offsets.append(len(document))
        document += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    count = len(objects) + 1
    return document + b"xref\n0 %d\n0000000000 65535 f \n%strailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (
        count,
        table,
        count,
        len(document),
    )
