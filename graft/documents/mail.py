"""E-mail to text: a message (.eml) or a mailbox (.mbox), headers first; attachments are named."""

import re
from typing import TYPE_CHECKING

from graft.documents.html import html_text

if TYPE_CHECKING:
    from email.message import MIMEPart

HEADERS = ("From", "To", "Cc", "Date", "Subject")
_FROM_LINE = re.compile(rb"^From [^\r\n]*\r?\n", re.M)


def mail_text(data: bytes, path: str) -> str:
    """Every message, with a line between two of a mailbox."""
    parts = _FROM_LINE.split(data)[1:] if data.startswith(b"From ") else [data]
    return "\n\n---\n\n".join(_message_text(part, path) for part in parts)


def _message_text(data: bytes, path: str) -> str:
    import email.policy
    from email.message import EmailMessage

    message = email.message_from_bytes(data, EmailMessage, policy=email.policy.default)
    lines = [f"{name}: {message[name]}" for name in HEADERS if message[name]]
    files = [part.get_filename("unnamed") for part in message.iter_attachments()]
    if files:
        lines.append(f"Attachments: {', '.join(files)}")
    body = message.get_body(("plain", "html"))
    return "\n".join(lines) + f"\n\n{_body_text(body, path).strip()}" if body else "\n".join(lines)


def _body_text(body: "MIMEPart", path: str) -> str:
    payload = body.get_payload(decode=True)
    data = payload if isinstance(payload, bytes) else b""
    try:
        text = data.decode(body.get_content_charset("utf-8"), errors="replace")
    except LookupError:  # an unknown charset
        text = data.decode("utf-8", errors="replace")
    if body.get_content_type() == "text/html":
        return html_text(text.encode(), path)
    return text.replace("\r\n", "\n")
