"""Sources of weights as zoo entries name them, checked when they are read; nothing is fetched here."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from vitattack.core.errors import UsageError
from vitattack.core.registry import did_you_mean
from vitattack.core.words import without_secrets
from vitattack.text.validate import check_keys, check_types

T = TypeVar("T")

GITHUB = "https://github.com"
DRIVE = "https://drive.usercontent.google.com/download"
FORMS = {
    "embedded": "embedded",
    "timm": "timm:ARCH.TAG",
    "hf-hub": "hf-hub:OWNER/NAME[@REVISION][/FILE]",
    "github": "github:OWNER/REPO@TAG/FILE",
    "https": "https://HOST/PATH",
    "gdrive": "gdrive:ID",
    "nextcloud": "nextcloud:https://HOST/s/TOKEN[/PATH]",
    "file": "file:PATH",
}
_WORD = r"[A-Za-z0-9][\w.-]*"
_PATTERNS = {
    "embedded": r"",
    "timm": rf"{_WORD}\.{_WORD}",
    "hf-hub": rf"({_WORD}/{_WORD})(?:@({_WORD}))?(?:/([\w.-]+(?:/[\w.-]+)*))?",
    "github": rf"({_WORD}/{_WORD})@({_WORD}(?:/{_WORD})*)/([\w.+-]+)",
    "https": r"[^\s]+",
    "http": r"[^\s]+",
    "gdrive": r"[\w-]{10,}",
    "nextcloud": r"https?://[^\s?#]+/s/\w+(?:/[^\s?#]+)?",
    "file": r".+",
}
SUFFIXES = (
    ".safetensors",
    ".pt",
    ".pth",
    ".pth.tar",
    ".ckpt",
    ".bin",
    ".pt2",
    ".ts",
    ".torchscript",
)  # of checkpoint files
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Source:
    """One place that a checkpoint can be fetched from."""

    kind: str
    where: str

    @property
    def text(self) -> str:
        if self.kind == "embedded":
            return "embedded"
        return self.where if self.kind in ("https", "http") else f"{self.kind}:{self.where}"

    @property
    def shown(self) -> str:
        """The text for records and messages: the query of an address may be a signature, and stays in the zoo file."""
        return without_secrets(self.text)

    @property
    def hub(self) -> tuple[str, str | None, str | None]:
        """Repository, revision and file of a hub source."""
        return self._groups()  # type: ignore[return-value]

    @property
    def url(self) -> str:
        """The address of a source that is fetched by HTTP."""
        if self.kind == "github":
            repo, tag, asset = self._groups()
            return f"{GITHUB}/{repo}/releases/download/{quote(tag or '', safe='/')}/{quote(asset or '')}"
        if self.kind == "gdrive":
            return f"{DRIVE}?id={self.where}&export=download&confirm=t"
        if self.kind == "nextcloud":
            share, token, path = re.fullmatch(r"(.+/s/)(\w+)(?:/(.+))?", self.where).groups()  # type: ignore[union-attr]
            if path is None:
                return f"{share}{token}/download"
            folder, _, file = path.rpartition("/")
            return f"{share}{token}/download?path={quote('/' + folder, safe='')}&files={quote(file, safe='')}"
        return self.where

    @property
    def path(self) -> Path:
        """The file of a local source."""
        with suppress(RuntimeError):  # nobody is called what follows the ~
            return Path(self.where).expanduser()
        return Path(self.where)

    def _groups(self) -> tuple[str | None, ...]:
        matched = re.fullmatch(_PATTERNS[self.kind], self.where)
        assert matched is not None
        return matched.groups()


def parse_source(text: str) -> Source:
    """Parse the text of a source; `FORMS` lists the schemes."""
    kind, colon, rest = text.partition(":")
    if kind in ("https", "http"):
        rest = text
    if kind not in _PATTERNS or (kind != "embedded" and not colon):
        raise UsageError(did_you_mean("weights source", kind, FORMS))
    if not re.fullmatch(_PATTERNS[kind], rest) or not text.isprintable():
        raise UsageError(f"weights source {_shown(text)!r} is not understood: write {FORMS.get(kind, FORMS['https'])}")
    source = Source(kind, rest)
    if kind in ("hf-hub", "github", "nextcloud") and ".." in rest.split("/"):
        raise UsageError(f"weights source {_shown(text)!r} climbs out of its folder: drop the ..")
    if kind in ("https", "http", "nextcloud"):
        safe_address(source.url)
    return source


def safe_address(url: str) -> str:
    """Return an address that may be fetched: https, or plain http to this machine; refuse others."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  # read, since it may be none
    except ValueError:  # brackets that hold no address, a port beyond 65535
        parts = urlsplit("")
    if not parts.hostname or parts.scheme not in ("http", "https"):
        raise UsageError(f"address {_shown(url)!r} is not one of the web: write https://HOST/PATH")
    if parts.username or parts.password:
        raise UsageError("an address must hold no user and no password: drop what stands before the @")
    if parts.scheme == "http" and parts.hostname not in LOOPBACK:
        raise UsageError(
            f"address {_shown(url)!r} is not encrypted, anybody on the way could change the file: use https"
        )
    return url


def _shown(text: str) -> str:
    """The beginning of a source that may not even be one, without what may be secret."""
    return re.split(r"[?#]", without_secrets(text))[0][:100]


@dataclass(frozen=True)
class WeightSources:
    """Sources of a checkpoint, tried in order, and the hash it must have; `mirrors` is called `from` in a zoo file."""

    mirrors: tuple[str, ...]
    file: str | None = None
    sha256: str | None = None
    size: int | None = None
    weights_key: tuple[str, ...] = ()  # the first one present is used; none: the top level
    strip_prefix: tuple[str, ...] = ()  # applied in order

    @property
    def sources(self) -> tuple[Source, ...]:
        return tuple(map(parse_source, self.mirrors))

    @property
    def shown(self) -> tuple[str, ...]:
        """The sources as records and messages name them."""
        return tuple(source.shown for source in self.sources)


def parse_weights(item: Any, where: str) -> WeightSources:
    """Parse and check the `weights` of a zoo entry."""
    if isinstance(item, dict):
        item = {"mirrors" if key == "from" else key: value for key, value in item.items()}
    values = check_keys(item, WeightSources, where, {"mirrors": "from"})
    for name in ("mirrors", "weights_key", "strip_prefix"):
        values[name] = _texts(values.get(name), "from" if name == "mirrors" else name, where)
    try:
        weights = check_types(WeightSources(**values), "weights", {"mirrors": "from"})
        kinds = {source.kind for source in weights.sources}
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    if not kinds:
        raise UsageError(f"{where}: from names no source: list one, or write 'weights: null' for weights not public")
    if weights.sha256 is not None and not re.fullmatch(r"[0-9a-f]{64}", weights.sha256):
        raise UsageError(f"{where}: sha256 must be 64 hexadecimal digits in quotes, or null")
    if weights.size is not None and weights.size <= 0:
        raise UsageError(f"{where}: size must be a number of bytes, or null")
    if weights.file is not None and not re.fullmatch(_WORD, weights.file):
        raise UsageError(f"{where}: file must be a plain file name, such as model.safetensors")
    if "embedded" in kinds and not (weights.file and weights.sha256):
        raise UsageError(f"{where}: embedded weights need file and sha256")
    return weights


def _texts(value: Any, key: str, where: str) -> tuple[str, ...]:
    """Return one text or a list of texts as a tuple."""
    texts = () if value is None else (value,) if isinstance(value, str) else value
    if not isinstance(texts, tuple | list) or not all(isinstance(text, str) and text for text in texts):
        raise UsageError(f"{where}: {key} must be a text or a list of texts")
    return tuple(texts)
