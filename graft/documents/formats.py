"""The formats of documents: one list for help, messages, the server and the playground."""

# Read by kreuzberg: one package without dependencies, 98 MB, imported in 0.1 s. markitdown with
# its readers takes 215 MB; mammoth, python-pptx and calamine take 37 MB but read three formats.
_OPEN_XML = "application/vnd.openxmlformats-officedocument"
SLIDES = ".pptx"
OFFICE = {
    ".docx": f"{_OPEN_XML}.wordprocessingml.document",
    SLIDES: f"{_OPEN_XML}.presentationml.presentation",
    ".xlsx": f"{_OPEN_XML}.spreadsheetml.sheet",
    ".odt": "application/vnd.oasis.opendocument.text",
    ".epub": "application/epub+zip",
    ".rtf": "application/rtf",
}
HTML = {".html", ".htm", ".xhtml"}
MAIL = {".eml", ".mbox"}
FORMATS = "text (Markdown, CSV, JSON, logs, source code), HTML, PDF, "
FORMATS += ", ".join([*sorted(MAIL), *OFFICE])
READABLE = f"can be read: {FORMATS}"
