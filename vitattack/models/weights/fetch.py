"""Weights of a zoo entry as named tensors, from the cache or the first source that delivers; checked, then parsed."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from vitattack.core import files
from vitattack.core.assets import EMBEDDED
from vitattack.core.errors import UsageError, VitattackError
from vitattack.core.locks import cache_lock
from vitattack.core.progress import Listener, current_listener, listening
from vitattack.core.words import names_a_file, safe_file_name
from vitattack.models.weights import cache, hub
from vitattack.models.weights.download import download
from vitattack.models.weights.safe_load import CouldRunCode, read_checkpoint
from vitattack.models.weights.sources import Source, WeightSources
from vitattack.models.weights.state_dict import named_tensors, strip_prefixes


def fetch_state(
    weights: WeightSources,
    *,
    name: str,
    offline: bool | None = None,
    progress: Listener | None = None,
    unsafe: bool = False,
) -> dict[str, Tensor]:
    """Return the named tensors of the entry `name`. `offline` is read from the environment unless it is given.

    The file must have the size and sha256 of the entry; where the entry has none, those of its first download, which
    are kept in the user's lock file. Other formats are converted to safetensors once. `unsafe` unpickles files that
    could run code.
    """
    with listening(progress or current_listener()):
        path, keys = _checked_file(weights, name, offline, unsafe)
        content = read_checkpoint(path, name=path.name, unsafe=unsafe and keys is not None)
        return strip_prefixes(named_tensors(content, path.name, keys), weights.strip_prefix, path.name)


def fetch_file(weights: WeightSources, *, name: str, offline: bool | None = None, unsafe: bool = False) -> Path:
    """Return the file that holds the tensors of `name`, fetching it if need be."""
    return _checked_file(weights, name, offline, unsafe)[0]


def weights_origin(weights: WeightSources, name: str) -> dict[str, str | None]:
    """Return the source of the weights of `name` and the hash of the file it sent, as far as they were recorded."""
    pin = cache.read_pins().get(name)
    if pin is not None and pin.source in weights.shown:
        return {"from": pin.source, "sha256": pin.sha256}
    return {"from": weights.shown[0], "sha256": weights.sha256 or cache.original_sha256(weights, name)}


def _checked_file(
    weights: WeightSources, name: str, offline: bool | None, unsafe: bool
) -> tuple[Path, tuple[str, ...] | None]:
    """Return the checked file and the keys that its tensors lie under, None if they are at its top level."""
    forbidden_by = "offline is set" if offline else files.offline_variable() if offline is None else None
    failed: list[str] = []
    only_absent = True
    if (cached := cache.cached_weights(weights, name)) is not None:
        return cached, None
    for source in weights.sources:
        try:
            return _fetch_from(source, weights, name, forbidden_by is not None, unsafe)
        except VitattackError as error:
            failed.append(f"{source.shown}: {error}")
            only_absent &= isinstance(error, hub.Absent)
            if source != weights.sources[-1] and not isinstance(error, hub.Absent):
                current_listener().note(f"{name}: {failed[-1]}; trying the next source")
    if forbidden_by is not None and only_absent:
        names = ", ".join(cache.cached_names()) or "nothing"
        raise UsageError(
            f"'{name}' is not cached and {forbidden_by} forbids the network (cached: {names}): "
            f"run 'vitattack models pull {name}' where there is one, with VITATTACK_HOME={files.cache_home()}"
        )
    where = "" if len(failed) == 1 else f" from any of {len(failed)} sources"
    raise UsageError(f"cannot get the weights of '{name}'{where}: {'; '.join(failed)}")


def _fetch_from(
    source: Source, weights: WeightSources, name: str, offline: bool, unsafe: bool
) -> tuple[Path, tuple[str, ...] | None]:
    if source.kind == "embedded":
        assert weights.file is not None
        path = EMBEDDED / weights.file
        cache.verify_file(path, weights, name)
        return path, weights.weights_key
    if source.kind == "file":
        path = source.path
        if not names_a_file(path):
            raise UsageError(f"the file '{path}' does not exist")
        cache.verify_file(path, weights, name)
        return path, weights.weights_key
    resolved = hub.resolve_timm(source)
    with cache_lock(name, lambda: current_listener().note(f"{name}: another process is fetching it, waiting")):
        if (cached := cache.cached_weights(weights, name)) is not None:
            return cached, None
        if resolved.kind == "hf-hub":
            return _fetch_from_hub(source, resolved, weights, name, offline, unsafe)
        return _fetch_from_web(source, resolved, weights, name, offline, unsafe), None


def _fetch_from_hub(
    source: Source, resolved: Source, weights: WeightSources, name: str, offline: bool, unsafe: bool
) -> tuple[Path, tuple[str, ...] | None]:
    """Leave safetensors in the hub's cache; convert other formats into ours."""
    pin = cache.read_pins().get(name)
    path = hub.fetch_from_hub(resolved, offline=offline, revision=pin.revision if pin else None)
    sha256 = cache.verify_file(path, weights, name)
    if path.suffix == ".safetensors":
        read_checkpoint(path)
        _pin(path, sha256, source, name)
        return path, weights.weights_key
    return _convert(path, path.name, sha256, source, weights, name, unsafe), None


def _fetch_from_web(
    source: Source, resolved: Source, weights: WeightSources, name: str, offline: bool, unsafe: bool
) -> Path:
    file = files.cache_folder("downloads") / _download_name(name, source)
    called = name if resolved.kind in ("gdrive", "nextcloud") else resolved.where.split("?")[0].rpartition("/")[2]

    def report(done: int, total: int | None) -> None:
        current_listener().progress(name, done, total or weights.size)

    note = file.with_name(file.name + ".sha256")  # of a file that waits for --unsafe-pickle, or whose call was stopped
    pinned = cache.expected_sha256(weights, name)[0] is not None
    try:
        if not file.is_file() or not (pinned or _has_noted_sha256(file, note)):
            if offline:
                raise hub.Absent("it is not in the cache")
            part = file.with_name(file.name + ".part")
            download(resolved.url, part, size=weights.size, pinned=pinned, progress=report)
            note.write_text(files.file_sha256(part))
            part.replace(file)
        sha256 = cache.verify_file(file, weights, name)
        converted = _convert(file, called, sha256, source, weights, name, unsafe)
    except OSError as error:
        raise VitattackError(
            f"cannot write '{file.parent}' ({error.strerror or error}): make room or set VITATTACK_HOME"
        ) from error
    except UsageError as error:
        if not isinstance(error, CouldRunCode) or error.hostile:
            file.unlink(missing_ok=True)  # complete, but not the expected file
            note.unlink(missing_ok=True)
        raise
    file.unlink()
    note.unlink(missing_ok=True)
    return converted


def _has_noted_sha256(file: Path, note: Path) -> bool:
    try:
        return files.no_pipe(note).read_text() == files.file_sha256(file)
    except (OSError, ValueError):
        return False


def _download_name(name: str, source: Source) -> str:
    """A file name per model and address, in which the query of the address cannot be read."""
    query = f" {cache.query_digest(source)}" if source.shown != source.text else ""
    return safe_file_name(f"{name} {source.shown}{query}")


def _convert(
    path: Path, called: str, sha256: str, source: Source, weights: WeightSources, name: str, unsafe: bool
) -> Path:
    """Write the tensors of a file into the cache. Its hash is pinned once it can be read, and before the copy counts."""
    state = named_tensors(read_checkpoint(path, name=called, unsafe=unsafe), called, weights.weights_key)
    _pin(path, sha256, source, name)
    return cache.store_converted(state, weights, name, sha256, source)


def _pin(path: Path, sha256: str, source: Source, name: str) -> None:
    """Record the hash, also where the zoo has one: the revision beside it saves asking the hub."""
    pin = cache.Pin(sha256, path.stat().st_size, source.shown, cache.utc_now(), hub.revision_of(path))
    if name not in cache.read_pins():
        cache.add_pin(name, pin)
