"""A web server on this machine that stands in for the hosts of weights, faults included."""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "1234567890abcdef1234567890abcdef12345678"


class Host(ThreadingHTTPServer):
    """Serves `files` by path with ranges and tags; `faults` of a path are used up one by one, before the file is."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files: dict[str, bytes] = {}
        self.faults: dict[str, list[Callable[[Answer], None]]] = {}
        self.asked: list[tuple[str, str, str | None]] = []  # method, path, range
        self.tokens: list[str | None] = []  # of each of them
        self.tagged = True
        self.is_hub = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def gets(self, path: str) -> list[str | None]:
        return [span for method, asked, span in self.asked if method == "GET" and asked.split("?")[0] == path]


class Answer(BaseHTTPRequestHandler):
    server: Host

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        span = self.headers.get("Range")
        self.server.asked.append((self.command, self.path, span))
        self.server.tokens.append(self.headers.get("Authorization"))
        faults = self.server.faults.get(self.path) or self.server.faults.get(path)
        if faults:
            faults.pop(0)(self)
        else:
            self.give(path, span)

    def give(self, path: str, span: str | None) -> None:
        body = self.server.files.get(self.path, self.server.files.get(path))
        if body is None:
            self.reply(404, b"no such file", {"X-Error-Code": "EntryNotFound"} if self.server.is_hub else {})
            return
        tag = f'"{hashlib.sha256(body).hexdigest()}"'
        headers = {"ETag": tag} if self.server.tagged else {}
        if self.server.is_hub:
            headers["X-Repo-Commit"] = COMMIT
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", span or "")
        if asked and self.headers.get("If-Range", tag) == tag:
            start, end = int(asked[1]), int(asked[2] or len(body) - 1)
            if start >= len(body):
                self.reply(416, b"", {"Content-Range": f"bytes */{len(body)}"})
                return
            self.reply(206, body[start : end + 1], {**headers, "Content-Range": f"bytes {start}-{end}/{len(body)}"})
        else:
            self.reply(200, body, headers)

    def reply(self, code: int, body: bytes, headers: dict[str, str] | None = None, send: int | None = None) -> None:
        """An answer; `send` bytes of its body only, after which the line is cut."""
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:send])
            self.wfile.flush()
        self.close_connection = True


def cut(after: int) -> Callable[[Answer], None]:
    def fault(answer: Answer) -> None:
        body = answer.server.files[answer.path]
        span = re.fullmatch(r"bytes=(\d+)-", answer.headers.get("Range", "") or "")
        start = int(span[1]) if span else 0
        tag = {"ETag": f'"{hashlib.sha256(body).hexdigest()}"'} if answer.server.tagged else {}
        more = {"Content-Range": f"bytes {start}-{len(body) - 1}/{len(body)}"} if start else {}
        answer.reply(206 if start else 200, body[start:], {**tag, **more}, send=after)

    return fault


def status(code: int, headers: dict[str, str] | None = None, body: bytes = b"") -> Callable[[Answer], None]:
    return lambda answer: answer.reply(code, body, headers)


def page(text: str, code: int = 200) -> Callable[[Answer], None]:
    return status(code, {"Content-Type": "text/html; charset=utf-8"}, text.encode())


def dripping(piece: int, seconds: float, content_type: str = "application/octet-stream") -> Callable[[Answer], None]:
    """The file in pieces with a pause after each, for as long as somebody listens."""

    def fault(answer: Answer) -> None:
        body = answer.server.files[answer.path]
        answer.send_response(200)
        answer.send_header("Content-Length", str(len(body)))
        answer.send_header("Content-Type", content_type)
        answer.end_headers()
        with contextlib.suppress(OSError):
            for start in range(0, len(body), piece):
                answer.wfile.write(body[start : start + piece])
                answer.wfile.flush()
                time.sleep(seconds)

    return fault


def dripping_headers(seconds: float) -> Callable[[Answer], None]:
    """Headers that never end, a letter at a time."""

    def fault(answer: Answer) -> None:
        answer.close_connection = True
        with contextlib.suppress(OSError):
            for letter in b"HTTP/1.1 200 OK\r\n" + b"X-Word: and another one\r\n" * 1000:
                answer.wfile.write(bytes([letter]))
                answer.wfile.flush()
                time.sleep(seconds)

    return fault


def slowly(seconds: float) -> Callable[[Answer], None]:
    def fault(answer: Answer) -> None:
        time.sleep(seconds)
        answer.give(answer.path.split("?")[0], answer.headers.get("Range"))

    return fault


@contextmanager
def host() -> Iterator[Host]:
    server = Host()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
