"""What was fetched before: converted weights with a note of their origin, and the user's lock file of hashes."""

from __future__ import annotations

import datetime
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitattack.core import files
from vitattack.core.errors import UsageError, VitattackError
from vitattack.core.words import safe_file_name
from vitattack.models.weights import hub
from vitattack.models.weights.sources import WeightSources
from vitattack.text.validate import check_types

if TYPE_CHECKING:
    from torch import Tensor

LOCK_FILE = "weights.lock.json"


@dataclass(frozen=True)
class Pin:
    """What the weights of a name hashed to when they were first fetched."""

    sha256: str
    size: int
    source: str
    date: str
    revision: str | None = None  # of a hub's repository


def pin_file() -> Path:
    return files.cache_home() / LOCK_FILE


def read_pins() -> dict[str, Pin]:
    """The user's lock file."""
    path = pin_file()
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text())
        return {
            name: check_types(Pin(**add_pin), f"the lock file '{path}', {name}")
            for name, add_pin in content["weights"].items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UsageError(f"the lock file '{path}' is broken ({error}): repair it, or move it away") from error


def add_pin(name: str, made: Pin) -> None:
    """Keep a hash; one that is there stays."""
    files.cache_folder()
    with files.cache_lock("lock file"):
        known = read_pins()
        if name in known:
            return
        content = {"schema": 1, "weights": {key: asdict(value) for key, value in {**known, name: made}.items()}}
        with files.replacing(pin_file()) as beside:
            beside.write_text(json.dumps(content, indent=2) + "\n")


def utc_now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def expected_sha256(weights: WeightSources, name: str) -> tuple[str | None, str]:
    """The hash the file must have, and who says so."""
    if weights.sha256 is not None:
        return weights.sha256, "the zoo"
    pinned = read_pins().get(name)
    return (pinned.sha256, f"your lock file {pin_file()}") if pinned else (None, "nobody")


def verify_file(path: Path, weights: WeightSources, name: str) -> str:
    """The hash of a file; refused if size or hash are others than those expected. Nothing is parsed before this."""
    size, found = path.stat().st_size, files.file_sha256(path)
    wanted, who = expected_sha256(weights, name)
    if weights.size is not None and weights.size != size:
        raise UsageError(f"it has {size:,} bytes, the zoo says {weights.size:,}: it is another file")
    if wanted is not None and wanted != found:
        trust = "" if weights.sha256 else f"; if you trust the new file, remove '{name}' there"
        raise UsageError(f"it has sha256 {found[:12]}..., {who} says {wanted[:12]}...: it is another file{trust}")
    return found


def cached_weights(weights: WeightSources, name: str) -> Path | None:
    """The weights in the cache, if they are whole and come from the file that is expected."""
    path = _place(name)
    note = _note(path)
    wanted, _ = expected_sha256(weights, name)
    if not note or not path.is_file():
        return None
    if note.get("weights_key") != list(weights.weights_key) or (wanted and note.get("original") != wanted):
        return None
    if note.get("source") not in weights.mirrors:  # the name meant something else when this was fetched
        return None
    if path.stat().st_size != note.get("size") or files.file_sha256(path) != note.get("sha256"):
        return None
    return path


def store_converted(state: dict[str, Tensor], weights: WeightSources, name: str, original: str, source: str) -> Path:
    """The tensors as a safetensors file in the cache; the note beside it comes last and makes it valid."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    files.cache_folder("weights")
    path = _place(name)
    _note_file(path).unlink(missing_ok=True)
    try:
        with files.replacing(path) as beside:
            # Tied tensors become two: safetensors keeps no shared storage, and a state dict names both.
            save_file({key: tensor.clone().contiguous() for key, tensor in state.items()}, beside)
    except SafetensorError as error:
        raise VitattackError(f"cannot write '{path}' ({error}): make room or set VITATTACK_HOME") from error
    note = {
        "name": name,
        "source": source,
        "original": original,
        "weights_key": list(weights.weights_key),
        "size": path.stat().st_size,
        "sha256": files.file_sha256(path),
        "date": utc_now(),
    }
    with files.replacing(_note_file(path)) as beside:
        beside.write_text(json.dumps(note, indent=2) + "\n")
    return path


def seems_cached(name: str) -> bool:
    """Whether converted weights are in the cache, as far as a look at their size can tell."""
    path = _place(name)
    return path.is_file() and path.stat().st_size == _note(path).get("size")


def weights_location(weights: WeightSources | None, name: str) -> str:
    """Where the weights of an entry are: `not public`, `embedded`, `cached`, `local`, or `not cached`."""
    if weights is None:
        return "not public"
    kinds = [source.kind for source in weights.sources]
    if "embedded" in kinds:
        return "embedded"
    if seems_cached(name):
        return "cached"
    known = read_pins().get(name)
    for source in weights.sources:
        if source.kind == "file" and source.path.is_file():
            return "local"
        if source.kind == "hf-hub" and hub.in_hub_cache(source, known.revision if known else None):
            return "cached"
        # timm is imported only for what was fetched once: a list of models must not wait for it.
        if source.kind == "timm" and known and known.source == source.text:
            found = hub.resolve_timm(source)
            if found.kind == "hf-hub" and hub.in_hub_cache(found, known.revision):
                return "cached"
    return "not cached"


def cached_names() -> list[str]:
    """The names whose converted weights are in the cache."""
    folder = files.cache_home() / "weights"
    notes = [_note(path) for path in folder.glob("*.safetensors")] if folder.is_dir() else []
    return sorted(str(note["name"]) for note in notes if "name" in note)


def _place(name: str) -> Path:
    return files.cache_home() / "weights" / (safe_file_name(name) + ".safetensors")


def _note_file(path: Path) -> Path:
    return path.with_suffix(".json")


def _note(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_note_file(path).read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
