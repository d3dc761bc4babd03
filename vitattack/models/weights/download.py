"""Download of one file from one address: resumable, patient with busy hosts, and never fooled by a web page."""

from __future__ import annotations

import email.utils
import http.client
import re
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vitattack.core.errors import UsageError, VitattackError
from vitattack.core.words import printable
from vitattack.models.weights.file_kind import looks_like
from vitattack.models.weights.pace import PacedBody, PacedHTTP, PacedHTTPS, TooSlow
from vitattack.models.weights.part_file import CHUNK, PartFile, PartWriter
from vitattack.models.weights.sources import LOOPBACK, safe_address
from vitattack.models.weights.web_page import WebPage, drive_confirmation

TRIES = 5  # in a row without progress
LONGEST_WAIT = 60.0  # seconds; if a host asks for more, the next mirror is tried
TIMEOUT = 30.0
FIRST = 4096  # bytes that tell a web page from a file
LARGEST = 64 << 30
LARGEST_PAGE = 1 << 18
TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
REASONS = {
    401: "wants a password: the file is not public",
    403: "refuses: the file is not public, or too many have asked for it",
    404: "does not have the file any more",
    410: "does not have the file any more",
    429: "has answered too many requests",
}
sleep = time.sleep
Progress = Callable[[int, int | None], None]  # bytes so far, and in all if the host says


class DownloadFailed(VitattackError):
    """The download failed; the message names the host and the reason."""


class _Interrupted(Exception):
    """A failure that is worth another try, after `wait` seconds if the host says so; a `slow` one is no progress."""

    def __init__(self, reason: str, wait: float | None = None, *, slow: bool = False) -> None:
        super().__init__(reason)
        self.wait = wait
        self.slow = slow


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects to addresses that are not encrypted, and from the web to this machine."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        safe_address(newurl)
        if urlsplit(newurl).hostname in LOOPBACK and urlsplit(req.full_url).hostname not in LOOPBACK:
            raise UsageError(f"{urlsplit(req.full_url).hostname} redirects to this machine: the address is not trusted")
        return super().redirect_request(req, fp, code, msg, headers, newurl)

    def http_error_302(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> Any:
        fp.read = lambda *size: b""  # the body would be read whole, whatever its length
        try:
            return super().http_error_302(req, fp, code, msg, headers)
        except VitattackError:
            raise
        except ValueError as error:  # of the standard library, about an address that is none
            raise DownloadFailed(f"{_host(req.full_url)} redirects to something that is no address") from error

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def download(
    url: str,
    part: Path,
    *,
    size: int | None = None,
    pinned: bool = False,
    progress: Progress = lambda done, total: None,
) -> None:
    """Download `url` into the file `part`, resuming where an earlier call stopped.

    A part of an earlier process is resumed if the hash of the whole is `pinned`; otherwise as far as its checksum was noted,
    and if the host can confirm that its file is unchanged.
    """
    kept = PartFile(part)
    left, confirmed, own_part = TRIES, False, False
    while True:
        if not (pinned or own_part):
            kept.cut_to_noted()
        own_part, have = True, kept.size
        try:
            _try_once(url, kept, size, progress)
        except WebPage as page:
            follow = None if confirmed else drive_confirmation(url, page.text)
            if follow is None:
                raise DownloadFailed(f"{_host(url)} sent {page.meaning} instead of the file") from None
            url, confirmed = follow, True
        except _Interrupted as cut:
            gained = not cut.slow and kept.size > have
            left = TRIES if gained else left - 1
            wait = cut.wait if cut.wait is not None else float(2 ** (TRIES - left - 1)) if not gained else 0.0
            if wait > LONGEST_WAIT:
                raise DownloadFailed(f"{_host(url)} {cut} and asks to come back in {wait:.0f} seconds") from None
            if left == 0:
                raise DownloadFailed(f"{_host(url)} {cut}, {TRIES} times in a row") from None
            sleep(wait)
        else:
            kept.finish()
            return


def _try_once(url: str, part: PartFile, size: int | None, progress: Progress) -> None:
    headers = {"User-Agent": f"vitattack/{version('vitattack')}", "Accept-Encoding": "identity"}
    if part.size:
        headers["Range"] = f"bytes={part.size}-"
        if validator := part.validator:
            headers["If-Range"] = validator
    try:
        with _opener(url).open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as answer:  # noqa: S310
            _write_body(answer, part, size, progress)
    except urllib.error.HTTPError as error:
        with error:  # it holds the connection
            if error.code == 416 and part.size:  # the part is not one of this file, or all of it: ask for the whole
                part.remove()
                raise _Interrupted("does not have the part that was asked for", 0.0) from None
            reason = REASONS.get(error.code, "cannot give the file")
            if error.code in TRANSIENT:
                wait = _retry_after(error.headers.get("Retry-After"))
                raise _Interrupted(f"{reason} ({error.code})", wait) from None
            try:
                page = WebPage(PacedBody(error).read_up_to(LARGEST_PAGE).decode("utf-8", "replace"))
            except (TooSlow, OSError, http.client.HTTPException):
                page = WebPage("")
            if page.known:
                reason = f"sent {page.known} instead of the file"
            raise DownloadFailed(f"{_host(url)} {reason} ({error.code})") from None
    except urllib.error.URLError as error:
        cause: object = error.reason
        reason = printable(str(cause))
        if isinstance(cause, socket.gaierror | ConnectionRefusedError | ssl.SSLCertVerificationError):
            raise DownloadFailed(f"{_host(url)} cannot be reached ({reason})") from None
        raise _Interrupted(f"cannot be reached ({reason})") from None
    except TooSlow as slow:
        raise _Interrupted(str(slow), slow=True) from None
    except (TimeoutError, ConnectionError, http.client.HTTPException, ssl.SSLError) as error:
        raise _Interrupted(f"broke off ({type(error).__name__})") from None


def _opener(url: str) -> urllib.request.OpenerDirector:
    local = [urllib.request.ProxyHandler({})] if urlsplit(url).hostname in LOOPBACK else []
    return urllib.request.build_opener(_Redirects, PacedHTTP, PacedHTTPS, *local)


def _write_body(answer: Any, part: PartFile, size: int | None, progress: Progress) -> None:
    """Write the body of an answer: appended if the host resumes, from the start if it does not."""
    length = answer.headers.get("Content-Length")
    body = int(length) if length and length.isdecimal() and len(length) < 20 else None
    resumed = answer.status == 206
    if resumed:
        span = re.fullmatch(r"bytes (\d{1,19})-\d+/(\d+|\*)", answer.headers.get("Content-Range", ""))
        if span is None or int(span[1]) != part.size:
            part.remove()
            raise _Interrupted("sends another part than was asked for")
    start = part.size if resumed else 0
    total = start + body if body is not None else None
    sent = PacedBody(answer)
    chunk = sent.read_up_to(FIRST)
    kind, content_type = looks_like(chunk), answer.headers.get("Content-Type", "")
    if not resumed and (
        kind == "a web page" or ("text/html" in content_type and kind not in ("safetensors", "zip", "pickle"))
    ):
        part.remove()
        raise WebPage((chunk + sent.read_up_to(LARGEST_PAGE - FIRST)).decode("utf-8", "replace"))
    if total is not None and size is not None and total != size:
        raise DownloadFailed(f"{_host(answer.url)} has {total:,} bytes, and the zoo says {size:,}: it is another file")
    limit = min(LARGEST, size or LARGEST)
    with PartWriter(part, start, part.validator if resumed else _validator(answer.headers)) as writer:
        while chunk:
            if writer.done + len(chunk) > limit:
                writer.empty()
                raise DownloadFailed(f"{_host(answer.url)} sends more than {limit:,} bytes: it is another file")
            writer.write(chunk)
            progress(writer.done, total)
            try:
                chunk = sent.read(CHUNK)
            except http.client.IncompleteRead as error:
                writer.write(error.partial)
                raise
    if total is not None and writer.done < total:
        raise _Interrupted("broke off")


def _validator(headers: Any) -> str:
    """What the host calls this version of the file; a weak tag does not say that its bytes are the same."""
    validator: str = headers.get("ETag") or headers.get("Last-Modified") or ""
    return "" if validator.startswith("W/") else validator


def _retry_after(text: str | None) -> float | None:
    """Return the seconds a host asks to wait, given as a number or a date."""
    if not text:
        return None
    if text.strip().isdecimal():
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def _host(url: str) -> str:
    return urlsplit(url).hostname or "the host"
