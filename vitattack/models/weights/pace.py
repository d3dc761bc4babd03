"""Patience with slow hosts, and its end: a timeout per read alone would wait for ever on two bytes a second."""

from __future__ import annotations

import http.client
import socket
import threading
import time
import urllib.request
from contextlib import suppress
from typing import Any

SLOWEST = 1000  # bytes per second, over each window
WINDOW = 30.0  # seconds; also the time for the headers of an answer


class TooSlow(Exception):
    """The host sends less than `SLOWEST`."""

    def __init__(self) -> None:
        super().__init__(f"sends less than {SLOWEST:,} bytes per second")


class PacedBody:
    """The body of an answer, read as it comes in."""

    def __init__(self, answer: Any) -> None:
        self._answer, self._began, self._count = answer, time.monotonic(), 0

    def read(self, most: int) -> bytes:
        """Some bytes, none at the end; raise `TooSlow` where a window brought too few."""
        piece: bytes = self._answer.read1(most)
        self._count += len(piece)
        passed = time.monotonic() - self._began
        if piece and passed >= WINDOW:
            if self._count < SLOWEST * passed:
                raise TooSlow
            self._began, self._count = time.monotonic(), 0
        return piece

    def read_up_to(self, wanted: int) -> bytes:
        """So many bytes, or all there are."""
        pieces = b""
        while len(pieces) < wanted and (piece := self.read(wanted - len(pieces))):
            pieces += piece
        return pieces


class _Headers(http.client.HTTPConnection):
    """A connection that gives the host one window for its headers."""

    def getresponse(self) -> http.client.HTTPResponse:
        late = threading.Event()
        line = self.sock

        def hang_up() -> None:
            late.set()
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(WINDOW, hang_up)
        timer.daemon = True
        timer.start()
        try:
            return super().getresponse()
        finally:
            timer.cancel()
            if late.is_set():
                raise TooSlow


class _SecureHeaders(_Headers, http.client.HTTPSConnection):
    """The same over TLS."""


class PacedHTTP(urllib.request.HTTPHandler):
    """Opens http addresses with patience for one window."""

    def http_open(self, req: Any) -> Any:
        return self.do_open(_Headers, req)


class PacedHTTPS(urllib.request.HTTPSHandler):
    """Opens https addresses with patience for one window; certificates are checked as always."""

    def https_open(self, req: Any) -> Any:
        return self.do_open(_SecureHeaders, req, context=self._context)  # type: ignore[attr-defined]
