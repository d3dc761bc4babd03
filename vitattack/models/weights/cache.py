"""The cache of fetched weights, converted and with a note of their origin, and the user's lock file of hashes."""

from __future__ import annotations

import datetime
import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitattack.core import files
from vitattack.core.errors import UsageError, VitattackError
from vitattack.core.locks import cache_lock
from vitattack.core.words import names_a_file, safe_file_name, without_secrets
from vitattack.models.weights import hub
from vitattack.models.weights.sources import Source, WeightSources
from vitattack.text.validate import check_types

if TYPE_CHECKING:
    from torch import Tensor

LOCK_FILE = "weights.lock.json"


@dataclass(frozen=True)
class Pin:
    """The hash of an entry's weights when they were first fetched."""

    sha256: str
    size: int
    source: str
    date: str
    revision: str | None = None  # of a repository on the hub


def pin_file() -> Path:
    return files.cache_home() / LOCK_FILE


def read_pins() -> dict[str, Pin]:
    """Read the user's lock file."""
    path = pin_file()
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text())
        pins = {
            name: check_types(Pin(**pin), f"the lock file '{path}', {name}") for name, pin in content["weights"].items()
        }
        return {name: replace(pin, source=without_secrets(pin.source)) for name, pin in pins.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UsageError(f"the lock file '{path}' is broken ({error}): repair it, or move it away") from error


def add_pin(name: str, pin: Pin) -> None:
    """Add a hash to the lock file; an existing one stays."""
    files.cache_folder()
    with cache_lock("lock file"):
        known = read_pins()
        if name in known:
            return
        content = {"schema": 1, "weights": {key: asdict(value) for key, value in {**known, name: pin}.items()}}
        with files.replacing(pin_file()) as beside:
            beside.write_text(json.dumps(content, indent=2) + "\n")


def utc_now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def expected_sha256(weights: WeightSources, name: str) -> tuple[str | None, str]:
    """Return the hash the file must have, and who states it."""
    if weights.sha256 is not None:
        return weights.sha256, "the zoo"
    pinned = read_pins().get(name)
    return (pinned.sha256, f"your lock file {pin_file()}") if pinned else (None, "nobody")


def verify_file(path: Path, weights: WeightSources, name: str) -> str:
    """Return the hash of a file, or refuse a file of another size or hash; nothing is parsed before this."""
    size, sha256 = path.stat().st_size, files.file_sha256(path)
    wanted, who = expected_sha256(weights, name)
    if weights.size is not None and weights.size != size:
        raise UsageError(f"it has {size:,} bytes, the zoo says {weights.size:,}: it is another file")
    if wanted is not None and wanted != sha256:
        trust = "" if weights.sha256 else f"; if you trust the new file, remove '{name}' there"
        raise UsageError(f"it has sha256 {sha256[:12]}..., {who} says {wanted[:12]}...: it is another file{trust}")
    return sha256


def cached_weights(weights: WeightSources, name: str) -> Path | None:
    """Return the converted weights in the cache if they are complete and come from the expected file."""
    path = _weights_file(name)
    note = _note(path)
    wanted, _ = expected_sha256(weights, name)
    if not note or not path.is_file():
        return None
    if note.get("weights_key") != list(weights.weights_key) or (wanted and note.get("original") != wanted):
        return None
    if not any(_is_from(note, source) for source in weights.sources):  # the entry had others when this was fetched
        return None
    if path.stat().st_size != note.get("size") or files.file_sha256(path) != note.get("sha256"):
        return None
    return path


def original_sha256(weights: WeightSources, name: str) -> str | None:
    """Return the hash of the file that the cached weights were made from, as their note has it."""
    note = _note(_weights_file(name))
    known = note.get("original") if any(_is_from(note, source) for source in weights.sources) else None
    return known if isinstance(known, str) else None


def store_converted(state: dict[str, Tensor], weights: WeightSources, name: str, original: str, source: Source) -> Path:
    """Write tensors as a safetensors file into the cache; the note beside it is written last and makes it valid."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    files.cache_folder("weights")
    path = _weights_file(name)
    _note_file(path).unlink(missing_ok=True)
    try:
        with files.replacing(path) as beside:
            # Tied tensors are written twice: safetensors keeps no shared storage, and a state dict names both.
            save_file({key: tensor.clone().contiguous() for key, tensor in state.items()}, beside)
    except SafetensorError as error:
        raise VitattackError(f"cannot write '{path}' ({error}): make room or set VITATTACK_HOME") from error
    note = {
        "name": name,
        "source": source.shown,
        **({"query_sha256": query_digest(source)} if source.shown != source.text else {}),
        "original": original,
        "weights_key": list(weights.weights_key),
        "size": path.stat().st_size,
        "sha256": files.file_sha256(path),
        "date": utc_now(),
    }
    with files.replacing(_note_file(path)) as beside:
        beside.write_text(json.dumps(note, indent=2) + "\n")
    return path


def query_digest(source: Source) -> str:
    """The hash that tells apart two addresses which differ in their queries alone."""
    return hashlib.sha256(source.text.encode()).hexdigest()


def _is_from(note: dict[str, Any], source: Source) -> bool:
    if source.shown == source.text:
        return note.get("source") == source.text
    return note.get("source") == source.shown and note.get("query_sha256") == query_digest(source)


def seems_cached(name: str) -> bool:
    """Whether converted weights are in the cache, judged by their size alone."""
    path = _weights_file(name)
    return path.is_file() and path.stat().st_size == _note(path).get("size")


def weights_location(weights: WeightSources | None, name: str) -> str:
    """Return where the weights of an entry are: `not public`, `embedded`, `cached`, `local`, or `not cached`."""
    if weights is None:
        return "not public"
    kinds = [source.kind for source in weights.sources]
    if "embedded" in kinds:
        return "embedded"
    if seems_cached(name):
        return "cached"
    known = read_pins().get(name)
    for source in weights.sources:
        if source.kind == "file" and names_a_file(source.path):
            return "local"
        if source.kind == "hf-hub" and hub.in_hub_cache(source, known.revision if known else None):
            return "cached"
        # timm is imported only for weights that were fetched before: a list of models must not wait for it.
        if source.kind == "timm" and known and known.source == source.text:
            resolved = hub.resolve_timm(source)
            if resolved.kind == "hf-hub" and hub.in_hub_cache(resolved, known.revision):
                return "cached"
    return "not cached"


def cached_names() -> list[str]:
    """Return the names whose converted weights are in the cache."""
    folder = files.cache_home() / "weights"
    notes = [_note(path) for path in folder.glob("*.safetensors")] if folder.is_dir() else []
    return sorted(str(note["name"]) for note in notes if "name" in note)


def _weights_file(name: str) -> Path:
    return files.cache_home() / "weights" / (safe_file_name(name) + ".safetensors")


def _note_file(path: Path) -> Path:
    return path.with_suffix(".json")


def _note(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(files.no_pipe(_note_file(path)).read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
