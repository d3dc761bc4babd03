"""Fuzzed hosts: every answer to a download is bytes of the fuzzer's choice, on a socket of this machine."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from hypothesis import strategies as st
from safetensors.torch import save

from tests.fuzz.guard import expect, unwatched
from tests.fuzz.mutations import ODD_WORDS, edited_bytes
from tests.fuzz.target import Target
from vitattack.core.files import cache_home
from vitattack.core.progress import Listener
from vitattack.models.weights import download, pace
from vitattack.models.weights.fetch import fetch_state
from vitattack.models.weights.sources import WeightSources

STATE = {"w": torch.arange(64.0)}
GOOD = save(STATE)
SHA256 = hashlib.sha256(GOOD).hexdigest()
PATIENCE = 0.25  # seconds, in place of half a minute
Answer = tuple[bytes, str, int]  # head and body, how it is sent, how much of it


class Host:
    """A socket that gives the answers it holds, one per connection, and hangs up after the last."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.answers: list[Answer] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            line, _ = self.socket.accept()
            threading.Thread(target=self._answer, args=(line,), daemon=True).start()

    def _answer(self, line: socket.socket) -> None:
        with line, contextlib.suppress(OSError):
            line.settimeout(5)
            request = b""
            while b"\r\n\r\n" not in request and (piece := line.recv(4096)):
                request += piece
            if not self.answers:
                return
            data, way, upto = self.answers.pop(0)
            if way == "drip":
                for at in range(min(len(data), 40)):
                    line.sendall(data[at : at + 1])
                    time.sleep(PATIENCE / 8)
                return
            line.sendall(data if way == "all" else data[:upto])
            if way == "hang":
                time.sleep(3 * PATIENCE)


@cache
def _host() -> Host:
    return Host()


def _header_values() -> st.SearchStrategy[str]:
    places = "/b?x=1 //example.com/x https://example.com/x http://example.com/x http://127.0.0.1:PORT/other.safetensors".split()
    odd = "https://[bad file:///etc/passwd ftp://x/y data:,x http://127.0.0.1:99999/ http://user:pw@127.0.0.1/".split()
    ranges = (
        "bytes 0-9/10",
        "bytes 5-9/*",
        "bytes 100-1/2",
        "bytes */10",
        "bytes ٣-9/10",
        f"bytes 0-{10**30}/{10**30}",
    )
    lengths = (str(len(GOOD)), "0", "-1", "5", "99999999999999", "1" * 5000, "٣", "abc", "1, 1")
    times = ("3", "0", "1e9", "9" * 400, "Thu, 01 Jan 1970 00:00:00 GMT", "Fri, 31 Dec 9999 23:59:59 -2359", "-5", "²")
    kinds = (
        "text/html",
        "application/octet-stream",
        "text/html; charset=\xff",
        '"abc"',
        'W/"abc"',
        "gzip",
        "chunked",
        "",
    )
    words = [word.replace("\n", " ").replace("\r", " ").replace("\x00", "") for word in ODD_WORDS if len(word) < 400]
    return st.one_of(*(st.sampled_from(values) for values in (places, odd, ranges, lengths, times, kinds, words)))


PAGES = (
    b"<html><title>Quota exceeded</title>too many users have viewed or downloaded</html>",
    b"<!doctype html><title>\x1b[31m&#10;&#8238;x</title>" + b"a" * 5000,
    b'<html><form id="download-form" action="/get?x=1"><input type="hidden" name="id" value="1"></form>',
    b'<html><form id="download-form" action="https://[x"><input type="hidden" name="id" value="&#0;"></form>',
    b'<html><form id="download-form" action="http://127.0.0.1:PORT@evil/">',
)
NAMES = (
    *"Content-Length Content-Length Content-Type Location Location ETag Retry-After Content-Range Transfer-Encoding".split(),
    *("Content-Encoding", "Last-Modified", "Connection", "X-\x01", "Set-Cookie"),
)
CODES = (
    *(200, 200, 200, 206, 206, 301, 302, 303, 307, 308),
    *(304, 204, 401, 403, 404, 408, 410, 416, 418, 429, 500, 503, 599, 100, 999, 0),
)


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    body = draw(st.one_of(st.just(GOOD), st.just(GOOD), st.sampled_from(PAGES), edited_bytes([GOOD]), st.just(b"")))
    code = draw(st.sampled_from(CODES))
    first = draw(st.sampled_from((*[f"HTTP/1.1 {code} x"] * 5, f"HTTP/1.0 {code}", "HTTP/9 x", "", "\x00")))
    headers = draw(st.lists(st.tuples(st.sampled_from(NAMES), _header_values()), max_size=4))
    if draw(st.booleans()):
        headers.append(("Content-Length", str(len(body))))
    head = "".join(f"{name}: {value}\r\n" for name, value in headers)
    data = f"{first}\r\n{head}\r\n".encode("utf-8", "replace") + body
    if draw(st.integers(0, 5)) == 0:
        data = draw(edited_bytes([data], most=2))
    way = draw(st.sampled_from(("all",) * 14 + ("cut", "cut", "hang", "drip")))
    return data, way, draw(st.integers(0, len(data))) if way != "all" else 0


def hosts() -> st.SearchStrategy[tuple[list[Answer], bool, bool]]:
    return st.tuples(st.lists(answers(), min_size=1, max_size=5), st.booleans(), st.booleans())


@contextmanager
def _impatient() -> Iterator[None]:
    """Waits of a moment, and no way to other machines."""
    known = socket.getaddrinfo

    def local_only(host: Any, *args: Any, **more: Any) -> Any:
        if host not in ("127.0.0.1", "localhost", b"127.0.0.1"):
            raise socket.gaierror(-2, "Name or service not known")
        return known(host, *args, **more)

    with (
        patch.object(download, "sleep", lambda seconds: None),
        patch.object(download, "TIMEOUT", PATIENCE),
        patch.object(pace, "WINDOW", PATIENCE),
        patch.object(socket, "getaddrinfo", local_only),
    ):
        yield


def _fetch(value: tuple[list[Answer], bool, bool]) -> None:
    """Fetch weights from the host; what comes back under a pinned hash is the file that the hash is of."""
    given, pinned, sized = value
    host = _host()
    port = str(host.port).encode()
    host.answers = [(data.replace(b"PORT", port), way, upto) for data, way, upto in given]
    with unwatched():
        shutil.rmtree(cache_home(), ignore_errors=True)
    weights = WeightSources(
        (f"http://127.0.0.1:{host.port}/w.safetensors?sig=secret",),
        sha256=SHA256 if pinned else None,
        size=len(GOOD) if sized else None,
    )
    began = time.monotonic()
    try:
        with _impatient():
            state = fetch_state(weights, name="fuzzed", offline=False, progress=Listener())
        if pinned:
            expect(set(state) == {"w"} and torch.equal(state["w"], STATE["w"]), "another file under this hash")
    except Exception as error:
        expect("secret" not in str(error), f"the message shows the query: {error}")
        raise
    finally:
        host.answers = []
        took = time.monotonic() - began
    expect(took < 60, f"{took:.0f} s of waiting")


TARGETS = (Target("http answers", hosts, _fetch),)
