"""Web pages that hosts send in place of a file, and the "download anyway" form of Google Drive."""

from __future__ import annotations

import html
import re
from urllib.parse import urlencode, urljoin, urlsplit

from vitattack.core.words import printable
from vitattack.models.weights.sources import safe_address

PAGES = (  # phrases of a page in lower case, and what they mean
    (("quota exceeded", "too many users have viewed or downloaded"), "Google Drive's page saying that its quota is used up"),
    (("virus scan warning", "can't scan this file for viruses"), "Google Drive's warning that it did not scan the file"),
    (("accounts.google.com", "you need access", "sign in", "sign-in", "log in"), "a page that asks to sign in"),
    (("rate limit", "too many requests"), "a page that says too many files were asked for"),
)  # fmt: skip


class WebPage(Exception):
    """A web page was sent in place of the file."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    @property
    def known(self) -> str | None:
        lower = self.text.lower()
        return next((meaning for words, meaning in PAGES if any(word in lower for word in words)), None)

    @property
    def meaning(self) -> str:
        if self.known:
            return self.known
        title = re.search(r"<title[^>]*>(.*?)</title>", self.text, re.IGNORECASE | re.DOTALL)
        named = printable(html.unescape(title[1]), 60) if title else ""
        return f"a web page ('{named}')" if named else "a web page"


def drive_confirmation(url: str, page: str) -> str | None:
    """Return the address that the "download anyway" form of Google Drive leads to, with all of its fields."""
    form = re.search(r'<form\b[^>]*\bid="download-form"[^>]*>', page)
    action = form and re.search(r'\baction="([^"]+)"', form[0])
    if not action:
        return None
    inputs = [
        {key: html.unescape(value) for key, value in re.findall(r'\b(name|value)="([^"]*)"', tag)}
        for tag in re.findall(r'<input\b[^>]*type="hidden"[^>]*>', page)
    ]
    try:
        target = urljoin(url, html.unescape(action[1]))
        same_host = urlsplit(target).netloc == urlsplit(url).netloc
    except ValueError:  # no address
        return None
    if not same_host:
        return None
    fields = {field["name"]: field.get("value", "") for field in inputs if "name" in field}
    return safe_address(target.split("?")[0] + "?" + urlencode(fields))
