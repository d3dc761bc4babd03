"""Downloads from a host that cuts the line, asks to wait, redirects, or sends something else."""

from __future__ import annotations

import email.utils
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.models.weights.hosts import Host, cut, dripping, dripping_headers, host, page, status
from vitattack.core.errors import VitattackError
from vitattack.models.weights import download as module
from vitattack.models.weights import pace
from vitattack.models.weights.download import download

BODY = os.urandom(3_000_000)


@pytest.fixture
def there() -> Iterator[Host]:
    with host() as server:
        server.files["/w"] = BODY
        yield server


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that would have been waited."""
    waited: list[float] = []
    monkeypatch.setattr(module, "sleep", waited.append)
    return waited


def test_a_cut_download_goes_on_where_it_stopped(there: Host, tmp_path: Path, waits: list[float]) -> None:
    there.faults["/w"] = [cut(1_000_000), cut(700_000)]
    seen: list[tuple[int, int | None]] = []
    download(there.url + "/w", tmp_path / "part", progress=lambda done, total: seen.append((done, total)))
    assert (tmp_path / "part").read_bytes() == BODY
    assert there.gets("/w") == [None, "bytes=1000000-", "bytes=1700000-"]
    assert seen[-1] == (len(BODY), len(BODY)) and seen == sorted(seen) and not any(waits)
    assert [p.name for p in tmp_path.iterdir()] == ["part"]


@pytest.mark.parametrize("tagged", [True, False])
def test_a_later_call_goes_on_only_with_the_same_file(
    tagged: bool, there: Host, tmp_path: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TRIES", 1)
    there.tagged = tagged
    there.faults["/w"] = [cut(1_000_000), status(503)]
    with pytest.raises(VitattackError, match=r"127\.0\.0\.1 cannot give the file \(503\), 1 times in a row"):
        download(there.url + "/w", tmp_path / "part")
    assert (tmp_path / "part").stat().st_size == 1_000_000
    there.files["/w"] = changed = BODY[::-1]
    download(there.url + "/w", tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == changed
    assert there.gets("/w")[2:] == (["bytes=1000000-"] if tagged else [None])


@pytest.mark.parametrize("damage", ["byte", "note", "longer", "shorter"])
def test_a_part_that_was_damaged_is_not_gone_on_with(
    damage: str, there: Host, tmp_path: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No hash of the whole is known, so the part's own checksum has to tell; bytes beyond it are cut off."""
    monkeypatch.setattr(module, "TRIES", 1)
    there.faults["/w"] = [cut(1_000_000), status(503)]
    with pytest.raises(VitattackError):
        download(there.url + "/w", tmp_path / "part")
    part, note = tmp_path / "part", tmp_path / "part.json"
    content = part.read_bytes()
    if damage == "byte":
        part.write_bytes(content[:5000] + bytes([content[5000] ^ 1]) + content[5001:])
    elif damage == "note":
        note.write_bytes(b"{" + note.read_bytes())
    else:
        part.write_bytes(content + b"more" if damage == "longer" else content[:-1])
    download(there.url + "/w", part)
    assert part.read_bytes() == BODY
    assert there.gets("/w")[2:] == (["bytes=1000000-"] if damage == "longer" else [None])


def test_a_pinned_file_goes_on_without_a_tag(there: Host, tmp_path: Path, waits: list[float]) -> None:
    there.tagged = False
    (tmp_path / "part").write_bytes(BODY[:123])
    download(there.url + "/w", tmp_path / "part", pinned=True)
    assert (tmp_path / "part").read_bytes() == BODY and there.gets("/w") == ["bytes=123-"]


def test_a_part_longer_than_the_file_is_dropped(there: Host, tmp_path: Path, waits: list[float]) -> None:
    (tmp_path / "part").write_bytes(BODY + b"more")
    download(there.url + "/w", tmp_path / "part", pinned=True)
    assert (tmp_path / "part").read_bytes() == BODY


def test_a_host_that_asks_to_wait_is_obeyed(there: Host, tmp_path: Path, waits: list[float]) -> None:
    date = email.utils.formatdate(time.time() + 20, usegmt=True)
    there.faults["/w"] = [
        status(429, {"Retry-After": "7"}),
        status(429, {"Retry-After": date}),
        status(503, {"Retry-After": "soon"}),
    ]
    download(there.url + "/w", tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == BODY
    assert waits[0] == 7 and 17 < waits[1] <= 20 and waits[2] == 4


@pytest.mark.parametrize(
    ("fault", "times", "message", "waited"),
    [
        (status(429, {"Retry-After": "1"}), 9, r"too many requests \(429\), 5 times in a row", [1.0] * 4),
        (status(500), 9, r"cannot give the file \(500\), 5 times in a row", [1.0, 2.0, 4.0, 8.0]),
        (status(429, {"Retry-After": "3600"}), 1, r"too many requests \(429\) and asks to come back in 3600 s", []),
        (status(404), 1, r"does not have the file any more \(404\)", []),
        (status(401), 1, r"wants a password: the file is not public \(401\)", []),
    ],
)
def test_giving_up_is_one_line(
    fault: object, times: int, message: str, waited: list[float], there: Host, tmp_path: Path, waits: list[float]
) -> None:
    there.faults["/w"] = [fault] * times  # type: ignore[list-item]
    with pytest.raises(VitattackError, match=message) as caught:
        download(there.url + "/w", tmp_path / "part")
    assert "\n" not in str(caught.value) and waits == waited and not (tmp_path / "part").exists()


def test_redirects_are_followed_but_not_everywhere(there: Host, tmp_path: Path, waits: list[float]) -> None:
    there.faults["/moved"] = [status(302, {"Location": "/w"}), status(302, {"Location": "/w"})]
    (tmp_path / "part").write_bytes(BODY[:99])
    download(there.url + "/moved", tmp_path / "part", pinned=True)
    assert (tmp_path / "part").read_bytes() == BODY and there.gets("/w") == ["bytes=99-"]
    for target, message in (
        ("http://example.org/w", "is not encrypted"),
        ("file:///etc/passwd", "is not one of the web|is not allowed|cannot"),
        ("ftp://127.0.0.1/w", "is not one of the web"),
        ("https://user:secret@example.org/w", "no user and no password"),
    ):
        there.faults["/away"] = [status(302, {"Location": target})] * 9
        with pytest.raises(VitattackError, match=message):
            download(there.url + "/away", tmp_path / "other")
        assert not (tmp_path / "other").exists()
    there.faults["/round"] = [status(302, {"Location": "/round"})] * 99
    with pytest.raises(VitattackError, match=r"\(302\)"):
        download(there.url + "/round", tmp_path / "other")


QUOTA = "<!DOCTYPE html><html><head><title>Google Drive - Quota exceeded</title></head><body>Sorry</body></html>"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (page(QUOTA), "127.0.0.1 sent Google Drive's page saying that its quota is used up instead of the file"),
        (page(QUOTA, 403), "sent Google Drive's page saying that its quota is used up"),
        (page("<html><a href='https://accounts.google.com/x'>Sign in</a></html>"), "sent a page that asks to sign in"),
        (page("\ufeff \n<HTML><title>Our \x1b[31m\n cluster</title>"), r"sent a web page \('Our \[31m cluster'\)"),
        (page("nothing but words"), "sent a web page instead"),
        (status(200, {}, b"<html></html>"), "sent a web page instead"),
    ],
)
def test_a_page_in_place_of_a_file_is_named(
    fault: object, message: str, there: Host, tmp_path: Path, waits: list[float]
) -> None:
    there.faults["/w"] = [fault]  # type: ignore[list-item]
    with pytest.raises(VitattackError, match=message) as caught:
        download(there.url + "/w", tmp_path / "part")
    assert str(caught.value).isprintable() and not (tmp_path / "part").exists()


def test_the_form_of_a_large_file_on_drive_is_filled_in(there: Host, tmp_path: Path) -> None:
    form = (
        "<html><body>Google Drive can't scan this file for viruses"
        '<form id="download-form" action="/download" method="get"><input type="hidden" name="id" value="abc">'
        '<input type="hidden" name="confirm" value="t&amp;1"><input type="hidden" name="uuid" value="u-1"></form>'
    )
    there.files["/download?id=abc&confirm=t%261&uuid=u-1"] = BODY
    there.faults["/download"] = [page(form)]
    download(there.url + "/download?id=abc&export=download&confirm=t", tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == BODY
    away = form.replace('action="/download"', 'action="https://example.org/download"')
    for again in ([page(form), page(form)], [page(away)]):
        there.faults["/download"] = again
        with pytest.raises(VitattackError, match="did not scan the file"):
            download(there.url + "/download?id=abc", tmp_path / "other")


def test_a_file_of_another_size_is_not_fetched(there: Host, tmp_path: Path, waits: list[float]) -> None:
    with pytest.raises(VitattackError, match="has 3,000,000 bytes, and the zoo says 5: it is another file"):
        download(there.url + "/w", tmp_path / "part", size=5)
    there.faults["/endless"] = [lambda answer: answer.reply(200, BODY, {"Content-Length": ""})]
    with pytest.raises(VitattackError, match="sends more than 5 bytes"):
        download(there.url + "/endless", tmp_path / "part", size=5)
    assert not (tmp_path / "part").exists() or (tmp_path / "part").stat().st_size == 0


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", ["application/octet-stream", "text/html"])
def test_a_host_that_drips_is_given_up(
    kind: str, there: Host, tmp_path: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "WINDOW", 0.3)
    there.faults["/w"] = [dripping(2, 0.02, kind)] * 9
    began = time.monotonic()
    with pytest.raises(VitattackError, match=r"127\.0\.0\.1 sends less than 1,000 bytes per second, 5 times in a row"):
        download(there.url + "/w", tmp_path / "part")
    assert time.monotonic() - began < 10 and len(there.gets("/w")) == 5


@pytest.mark.timeout(30)
def test_a_host_whose_headers_drip_is_given_up(
    there: Host, tmp_path: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "WINDOW", 0.3)
    there.faults["/w"] = [dripping_headers(0.02)] * 9
    with pytest.raises(VitattackError, match=r"sends less than 1,000 bytes per second, 5 times in a row"):
        download(there.url + "/w", tmp_path / "part")


def test_a_slow_host_is_not_given_up(there: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "WINDOW", 0.2)
    there.files["/w"] = BODY[:20_000]
    there.faults["/w"] = [dripping(1_000, 0.05)]
    download(there.url + "/w", tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == BODY[:20_000] and len(there.gets("/w")) == 1


def test_an_unreachable_host_is_one_line(tmp_path: Path, waits: list[float]) -> None:
    with host() as server:
        url = server.url
    with pytest.raises(VitattackError, match=r"127\.0\.0\.1 cannot be reached \(.*refused\)"):
        download(url + "/w", tmp_path / "part")
    assert waits == []


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_to_no_address_is_one_line(code: int, there: Host, tmp_path: Path, waits: list[float]) -> None:
    there.faults["/w"] = [status(code, {"Location": "https://[x", "Content-Length": "9" * 14})]
    with pytest.raises(VitattackError, match="redirects to something that is no address|is not one of the web"):
        download(there.url + "/w", tmp_path / "part")


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_the_body_of_a_redirect_is_not_read(code: int, there: Host, tmp_path: Path, waits: list[float]) -> None:
    there.faults["/old"] = [status(code, {"Location": "/w", "Content-Length": "9" * 14})]
    download(there.url + "/old", tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == BODY and not waits


def test_a_form_that_leads_to_no_address_is_a_page(there: Host, tmp_path: Path) -> None:
    there.faults["/w"] = [page('<html><form id="download-form" action="https://[x"></form>')]
    with pytest.raises(VitattackError, match="sent a web page instead of the file"):
        download(there.url + "/w", tmp_path / "part")


def test_lengths_beyond_all_numbers_are_no_lengths(there: Host, tmp_path: Path, waits: list[float]) -> None:
    there.faults["/w"] = [status(200, {"Content-Length": "1" * 5000}, BODY[:100])]
    download(there.url + "/w", tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == BODY[:100]
    there.faults["/w"] = [status(206, {"Content-Range": f"bytes {'1' * 5000}-2/3"}, BODY[:100])]
    (tmp_path / "part").unlink()
    download(there.url + "/w", tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == BODY
