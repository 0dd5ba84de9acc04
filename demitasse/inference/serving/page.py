"""The server's page, to which photos are dropped: HTML in one file, with a strict policy.

Source: W3C, *Content Security Policy Level 3*.
"""

import base64
import hashlib
import re
from functools import cache
from pathlib import Path

from demitasse.inference.serving.framing import Response

FILE = Path(__file__).with_name("page.html")


@cache
def drop_page() -> Response:
    """Return the page with its headers.

    The policy allows the page's own style and script, by their hashes, requests to this server, and
    images that the script makes. Nothing else is loaded or run.
    """
    text = FILE.read_text(encoding="utf-8")
    style, script = (_hash(text, tag) for tag in ("style", "script"))
    policy = (
        f"default-src 'none'; style-src {style}; script-src {script}; connect-src 'self'; "
        "img-src blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
    return Response(200, headers, [text.encode()])


def _hash(text: str, tag: str) -> str:
    """Return the source expression of the page's only element with this tag."""
    [content] = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
