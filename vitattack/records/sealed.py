"""JSON with a checksum of its own, so that no damage to a stored file goes unnoticed, and the schema of the store.

A sealed object ends in the key `crc`: in a line it covers the bytes before it, in a file of its own the values.
Schema 1 had no checksums. Every later schema is refused.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from vitattack.core.errors import UsageError
from vitattack.core.files import cannot_write, json_text, no_pipe
from vitattack.core.words import printable

SCHEMA = 2
LEARNED = {"attack": str, "forwards": int, "backwards": int, "seconds": float}  # beside the key `learned`
END_OF_LINE = re.compile(rb',"crc":"([0-9a-f]{8})"\}')


class Damaged(ValueError):
    """A stored file or line that is not as it was written; the message says what is wrong with it."""


class NewerSchema(UsageError):
    """A stored file of a later version, which this one must neither read nor change."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} {why}: use the version of vitattack that wrote it, --fresh, or another --out")


def sealed_line(content: Mapping[str, Any], before: bytes = b"") -> bytes:
    """A line of JSON whose checksum also covers the bytes `before` it."""
    text = json.dumps(content, separators=(",", ":")).encode()[:-1]
    return b'%s,"crc":"%08x"}\n' % (text, zlib.crc32(text, zlib.crc32(before)))


def opened_line(line: bytes) -> dict[str, Any]:
    """The content of a sealed line that nothing but its own bytes protects; raises Damaged."""
    end = END_OF_LINE.search(line)
    if end is None or line[end.end() :] not in (b"", b"\n") or int(end[1], 16) != zlib.crc32(line[: end.start()]):
        raise Damaged("the checksum of a line does not fit")
    return parsed(line[: end.start()] + b"}")


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a file, with the schema first and the checksum of all values last."""
    whole = {"schema": SCHEMA, **content}
    whole["schema"] = SCHEMA
    whole.pop("crc", None)
    return {**whole, "crc": _checksum(whole)}


def sealed_text(content: Mapping[str, Any]) -> str:
    """The text of a file with this content; the order of its keys stays."""
    return json.dumps(sealed(content), indent=2) + "\n"


def load(path: Path) -> dict[str, Any] | None:
    """The content of a file of the store, None without one; raises Damaged, or NewerSchema."""
    try:
        content = parsed(no_pipe(path).read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Damaged(f"it cannot be read ({error.strerror})") from error
    schema, crc = content.get("schema"), content.pop("crc", None)
    if type(schema) is not int or schema < 1:
        raise Damaged("its schema is no number")
    if schema > SCHEMA:
        raise NewerSchema(path, f"is of schema {printable(str(schema), 20)}, this version knows up to {SCHEMA}")
    if crc != (_checksum(content) if schema > 1 else None):
        raise Damaged("its checksum does not fit")
    return content


def load_intact(path: Path) -> dict[str, Any] | None:
    """The content of a file of the store; None if it is missing, damaged, or of a later version."""
    with suppress(Damaged, NewerSchema):
        return load(path)
    return None


def load_learned(folder: Path) -> dict[str, Any] | None:
    """What the attack of a job learned, with its price; raises Damaged, or NewerSchema."""
    content = load(folder / "learned.json")
    if content is None:
        return None
    if any(type(content.get(name)) is not kind for name, kind in LEARNED.items()):
        raise Damaged("it does not hold what an attack learned")
    return {**content, "schema": 1}  # of the results that show it, not of the file


def parsed(text: bytes) -> dict[str, Any]:
    """The JSON object in a text; raises Damaged."""
    try:
        content = json.loads(text.decode())
    except UnicodeDecodeError as error:
        raise Damaged("it is not text") from error
    except (ValueError, RecursionError) as error:  # RecursionError: brackets nested by the thousand
        raise Damaged("it is not JSON") from error
    if not isinstance(content, dict):
        raise Damaged("it holds no JSON object")
    return content


def place_aside(path: Path) -> Path:
    """A free name beside a damaged file, for what is taken out of it."""
    numbers = iter(range(1, 1_000_000))
    return next(
        place for n in numbers if not (place := path.with_name(f"{path.stem}.damaged-{n}{path.suffix}")).exists()
    )


def move_aside(path: Path) -> Path:
    """Give a damaged file another name beside its own, which becomes free."""
    place = place_aside(path)
    try:
        path.replace(place)
    except FileNotFoundError:  # by another process, just now
        pass
    except OSError as error:
        raise cannot_write(path, error) from error
    return place


def _checksum(content: Mapping[str, Any]) -> str:
    try:
        return f"{zlib.crc32(json_text(content).encode()):08x}"
    except RecursionError as error:
        raise Damaged("it is nested too deeply") from error
