"""Office files of a few hundred bytes: a heading, a sentence with a bold word, a table."""

import io
import zipfile

HEADING, SENTENCE = "House rules", "The lift is serviced every March."
ROWS = [["Item", "Price"], ["Pump", "120"]]
TABLE = "| Item | Price |\n| --- | --- |\n| Pump | 120 |"
_WORD = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
_SHEET = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
_LINKS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_SLIDE = (
    'xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main" '
    'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" '
    f'xmlns:r="{_LINKS}"'
)
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"


def _zipped(files):
    """The texts by their paths."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return buffer.getvalue()


def _linked(*targets):
    links = "".join(
        f'<Relationship Id="r{number}" Type="{_LINKS}/{kind}" Target="{target}"/>'
        for number, (kind, target) in enumerate(targets)
    )
    return f'<Relationships xmlns="{_PACKAGE}/relationships">{links}</Relationships>'


def _package(files):
    types = f'<Types xmlns="{_PACKAGE}/content-types"/>'
    links = _linked(("officeDocument", next(iter(files))))
    return _zipped({"[Content_Types].xml": types, "_rels/.rels": links, **files})


def docx():
    def run(text, *, bold=False):
        mark = "<w:rPr><w:b/></w:rPr>" if bold else ""
        return f'<w:r>{mark}<w:t xml:space="preserve">{text}</w:t></w:r>'

    cells = [[f"<w:tc><w:p>{run(cell)}</w:p></w:tc>" for cell in row] for row in ROWS]
    table = "".join(f"<w:tr>{''.join(row)}</w:tr>" for row in cells)
    first, _, rest = SENTENCE.partition(" lift ")
    return _package(
        {
            "word/document.xml": f"<w:document {_WORD}><w:body>"
            f'<w:p><w:pPr><w:pStyle w:val="Heading1"/></w:pPr>{run(HEADING)}</w:p>'
            f"<w:p>{run(first)}{run(' lift', bold=True)}{run(' ' + rest)}</w:p>"
            f"<w:tbl>{table}</w:tbl></w:body></w:document>",
        }
    )


def pptx():
    def slide(text):
        paragraph = f"<a:p><a:r><a:t>{text}</a:t></a:r></a:p>"
        shape = f"<p:sp><p:txBody>{paragraph}</p:txBody></p:sp>"
        return f"<p:sld {_SLIDE}><p:cSld><p:spTree>{shape}</p:spTree></p:cSld></p:sld>"

    return _package(
        {
            "ppt/presentation.xml": f"<p:presentation {_SLIDE}><p:sldIdLst>"
            '<p:sldId id="256" r:id="r0"/><p:sldId id="257" r:id="r1"/>'
            "</p:sldIdLst></p:presentation>",
            "ppt/_rels/presentation.xml.rels": _linked(
                ("slide", "slides/slide1.xml"), ("slide", "slides/slide2.xml")
            ),
            "ppt/slides/slide1.xml": slide(HEADING),
            "ppt/slides/slide2.xml": slide(SENTENCE),
        }
    )


def xlsx():
    rows = "".join(
        "<row>" + "".join(f'<c t="inlineStr"><is><t>{cell}</t></is></c>' for cell in row) + "</row>"
        for row in ROWS
    )
    return _package(
        {
            "xl/workbook.xml": f'<workbook {_SHEET} xmlns:r="{_LINKS}"><sheets>'
            f'<sheet name="{HEADING}" sheetId="1" r:id="r0"/></sheets></workbook>',
            "xl/_rels/workbook.xml.rels": _linked(("worksheet", "worksheets/sheet1.xml")),
            "xl/worksheets/sheet1.xml": f"<worksheet {_SHEET}><sheetData>{rows}</sheetData>"
            "</worksheet>",
        }
    )


def _markup():
    rows = ["".join(f"<td>{cell}</td>" for cell in row) for row in ROWS]
    table = "".join(f"<tr>{row}</tr>" for row in rows)
    sentence = SENTENCE.replace("lift", "<b>lift</b>")
    return f"<h1>{HEADING}</h1><p>{sentence}</p><table>{table}</table>"


def epub():
    return _zipped(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": '<container version="1.0" '
            'xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
            '<rootfile full-path="book.opf" media-type="application/oebps-package+xml"/>'
            "</rootfiles></container>",
            "book.opf": '<package xmlns="http://www.idpf.org/2007/opf" version="3.0"><metadata/>'
            '<manifest><item id="b" href="b.xml" media-type="application/xhtml+xml"/>'
            '<item id="a" href="text/a%20b.xml" media-type="application/xhtml+xml"/></manifest>'
            '<spine><itemref idref="a"/><itemref idref="b"/></spine></package>',
            "b.xml": "<html><body><p>The end.</p></body></html>",
            "text/a b.xml": f'<html xmlns="http://www.w3.org/1999/xhtml"><body>{_markup()}</body></html>',
        }
    )


def odt():
    names = {kind: f"urn:oasis:names:tc:opendocument:xmlns:{kind}:1.0" for kind in
             ("office", "text", "table")}  # fmt: skip
    spaces = " ".join(f'xmlns:{kind}="{name}"' for kind, name in names.items())
    cells = [
        "".join(
            f"<table:table-cell><text:p><text:span>{cell}</text:span></text:p></table:table-cell>"
            for cell in row
        )  # fmt: skip
        for row in ROWS
    ]
    table = "".join(f"<table:table-row>{row}</table:table-row>" for row in cells)
    sentence = SENTENCE.replace("lift", "<text:a>lift</text:a>").replace("is ", "is<text:s/>")
    return _zipped(
        {
            "mimetype": "application/vnd.oasis.opendocument.text",
            "content.xml": f"<office:document-content {spaces}><office:body><office:text>"
            "<text:tracked-changes><text:p>deleted</text:p></text:tracked-changes>"
            f'<text:h text:outline-level="1">{HEADING}</text:h><text:p>{sentence}</text:p>'
            f'<table:table table:name="t">{table}</table:table>'
            "</office:text></office:body></office:document-content>",
        }
    )


def rtf():
    sentence = SENTENCE.replace("lift", r"{\b lift}")
    return rf"{{\rtf1\ansi {HEADING}\par {sentence}}}".encode()
