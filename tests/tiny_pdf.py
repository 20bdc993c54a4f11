"""PDFs of a few hundred bytes: lines of text, or a picture without text."""

PICTURE = b"q 200 0 0 200 50 500 cm BI /W 1 /H 1 /CS /G /BPC 8 ID \x80 EI Q"
# Unknown passwords: the empty one never gives these.
ENCRYPTION = b"<< /Filter /Standard /V 1 /R 2 /O <" + b"41" * 32 + b"> /U <" + b"42" * 32
ENCRYPTION += b"> /P -4 >>"


def text_pdf(*pages: list[str], encrypted: bool = False) -> bytes:
    """One page per list of lines."""
    contents = [_lines(lines) for lines in pages]
    return _pdf(contents, b"/Encrypt " + ENCRYPTION if encrypted else b"")


def scanned_pdf(pages: int = 1) -> bytes:
    """Pages that show a picture and have no text, as a scanner makes them."""
    return _pdf([PICTURE] * pages)


def _lines(lines: list[str]) -> bytes:
    shown = [f"({_escaped(line)}) Tj 0 -14 Td" for line in lines]
    return "\n".join(["BT /F1 11 Tf 50 800 Td", *shown, "ET"]).encode("cp1252")


def _escaped(line: str) -> str:
    return line.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")


def _pdf(contents: list[bytes], trailer: bytes = b"") -> bytes:
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>"
    kids = b" ".join(b"%d 0 R" % (4 + 2 * i) for i in range(len(contents)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, len(contents)),
        font,
    ]
    for i, content in enumerate(contents):
        objects += [
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents %d 0 R "
            b"/Resources << /Font << /F1 3 0 R >> >> >>" % (5 + 2 * i),
            b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content),
        ]
    body, places = b"%PDF-1.4\n", []
    for number, each in enumerate(objects, 1):
        places.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    rows = b"".join(b"%010d 00000 n \n" % place for place in places)
    size = len(objects) + 1
    table = b"xref\n0 %d\n0000000000 65535 f \n%s" % (size, rows)
    root = b"<< /Size %d /Root 1 0 R /ID [<00> <00>] %s >>" % (size, trailer)
    return b"%s%strailer\n%s\nstartxref\n%d\n%%%%EOF\n" % (body, table, root, len(body))
