"""Sources of weights: where each leads, and what is refused."""

from __future__ import annotations

import pytest

from vitattack.core.errors import UsageError
from vitattack.models.weights.cache import weights_location
from vitattack.models.weights.fetch import fetch_state
from vitattack.models.weights.sources import parse_source, parse_weights


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("github:a/b@v1.1/w-s.pth.tar", "https://github.com/a/b/releases/download/v1.1/w-s.pth.tar"),
        ("github:a/b@models/v2/w.pth", "https://github.com/a/b/releases/download/models/v2/w.pth"),
        ("https://host.org/~me/w.pth?x=1", "https://host.org/~me/w.pth?x=1"),
        (
            "gdrive:1-1sUYXnj6bDXacIKI3K",
            "https://drive.usercontent.google.com/download?id=1-1sUYXnj6bDXacIKI3K&export=download&confirm=t",
        ),
        ("nextcloud:https://c.org/index.php/s/AbC12", "https://c.org/index.php/s/AbC12/download"),
        ("nextcloud:https://c.org/s/AbC12/a/b/w.pt", "https://c.org/s/AbC12/download?path=%2Fa%2Fb&files=w.pt"),
        ("nextcloud:https://c.org/s/AbC12/w.pt", "https://c.org/s/AbC12/download?path=%2F&files=w.pt"),
        ("http://127.0.0.1:80/w", "http://127.0.0.1:80/w"),
    ],
)
def test_addresses(text: str, url: str) -> None:
    source = parse_source(text)
    assert source.url == url and source.text == text


@pytest.mark.parametrize(
    ("text", "hub"),
    [
        ("hf-hub:a/b", ("a/b", None, None)),
        ("hf-hub:a/b@v1", ("a/b", "v1", None)),
        ("hf-hub:a/b/c/w.safetensors", ("a/b", None, "c/w.safetensors")),
        ("hf-hub:a/b.c@0123/w.bin", ("a/b.c", "0123", "w.bin")),
    ],
)
def test_hub_sources(text: str, hub: tuple[str, str | None, str | None]) -> None:
    assert parse_source(text).hub == hub and parse_source(text).text == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gdriv:abc", "unknown weights source 'gdriv': did you mean gdrive"),
        ("ftp://host/w", "unknown weights source 'ftp'"),
        ("timm:vit_tiny_patch16_224", "write timm:ARCH.TAG"),
        ("hf-hub:justaname", "write hf-hub:OWNER/NAME"),
        ("hf-hub:a/b/../../c", "climbs out"),
        ("github:a/b/w.pt", "write github:OWNER/REPO@TAG/FILE"),
        ("github:a/b@../w.pt", "write github|climbs out"),
        ("gdrive:../../etc/passwd", "write gdrive:ID"),
        ("nextcloud:https://c.org/x/AbC", "write nextcloud:"),
        ("nextcloud:https://c.org/s/AbC/../../x", "climbs out"),
        ("nextcloud:http://c.org/s/AbC", "is not encrypted"),
        ("http://host.org/w.pt", "is not encrypted, anybody on the way could change the file: use https"),
        ("https://me:secret@host.org/w.pt", "no user and no password"),
        ("https:///w.pt", "is not one of the web"),
        ("https://[1::/w.pt", "is not one of the web"),
        ("https://host:99999/w.pt", "is not one of the web"),
        ("https://host/a b", "is not understood"),
        ("file:w\n.pt", "is not understood"),
        ("embedded:x", "is not understood: write embedded"),
    ],
)
def test_sources_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_source(text)
    assert "\n" not in str(caught.value) and "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"form": ["embedded"]}, "unknown key 'form': did you mean from"),
        ({}, "from is missing"),
        ({"from": []}, "from names no source"),
        ({"from": ["gdrive:x"]}, "here: weights source 'gdrive:x' is not understood"),
        ({"from": {"a": 1}}, "from must be a text or a list of texts"),
        ({"from": "file:w.pt", "strip_prefix": [1]}, "strip_prefix must be a text"),
        ({"from": "file:w.pt", "sha256": "abc"}, "64 hexadecimal digits"),
        ({"from": "file:w.pt", "size": "big"}, r"size is 'big', where int \| None belongs"),
        ({"from": "file:w.pt", "size": True}, r"size is True, where int \| None belongs"),
        ({"from": "file:w.pt", "size": -1}, "size must be a number"),
        ({"from": "file:w.pt", "file": "../w.pt"}, "file must be a plain file name"),
        ({"from": "embedded", "file": "w.safetensors"}, "embedded weights need file and sha256"),
        ("embedded", "expected keys and values"),
    ],
)
def test_mistakes_in_an_entry_are_named(item: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_weights(item, "here")


@pytest.mark.parametrize("text", ["file:~nobody-of-this-name/w.pt", f"file:{'a' * 5000}.pt"])
def test_files_that_no_folder_holds_are_not_there(text: str) -> None:
    weights = parse_weights({"from": text}, "here")
    assert weights_location(weights, "m") == "not cached"
    with pytest.raises(UsageError, match=r"does not exist"):
        fetch_state(weights, name="m")
