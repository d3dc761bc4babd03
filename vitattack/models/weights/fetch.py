"""A zoo entry's weights as named tensors: from the cache or the first source that gives them, checked before parsed."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from vitattack.core import files
from vitattack.core.assets import EMBEDDED
from vitattack.core.errors import UsageError, VitattackError
from vitattack.core.progress import Listener, current_listener, listening
from vitattack.core.words import safe_file_name
from vitattack.models.weights import cache, hub
from vitattack.models.weights.download import download
from vitattack.models.weights.safe_load import CouldRunCode
from vitattack.models.weights.safe_load import read_checkpoint as parse_checkpoint
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
    """The named tensors of the entry `name`. `offline` is read from the environment unless it is given.

    The file must have the size and sha256 of the entry; where the entry has none, those of its first download, which
    are kept in the user's lock file. What is not safetensors is converted once. `unsafe` unpickles what could run code.
    """
    with listening(progress or current_listener()):
        path, keys = _path(weights, name, offline, unsafe)
        content = parse_checkpoint(path, name=path.name, unsafe=unsafe and keys is not None)
        found = named_tensors(content, path.name, keys)
        return strip_prefixes(found, weights.strip_prefix, path.name)


def fetch_file(weights: WeightSources, *, name: str, offline: bool | None = None, unsafe: bool = False) -> Path:
    """The file the tensors of `name` are read from, fetched if need be."""
    return _path(weights, name, offline, unsafe)[0]


def weights_origin(weights: WeightSources, name: str) -> dict[str, str | None]:
    """The source the weights of `name` came from and the hash of what came in, as far as anybody noted it."""
    noted = cache.read_pins().get(name)
    if noted is not None and noted.source in weights.mirrors:
        return {"from": noted.source, "sha256": noted.sha256}
    return {"from": weights.mirrors[0], "sha256": weights.sha256}


def _path(weights: WeightSources, name: str, offline: bool | None, unsafe: bool) -> tuple[Path, tuple[str, ...] | None]:
    """The checked file, and the keys its tensors are still under; None for a file whose tensors lie on top."""
    why = "offline is set" if offline else files.offline_variable() if offline is None else None
    failed: list[str] = []
    only_absent = True
    kept = cache.cached_weights(weights, name)
    if kept is not None:
        return kept, None
    for source in weights.sources:
        try:
            return _from(source, weights, name, why is not None, unsafe)
        except VitattackError as error:
            failed.append(f"{source.text}: {error}")
            only_absent &= isinstance(error, hub.Absent)
            if source != weights.sources[-1] and not isinstance(error, hub.Absent):
                current_listener().note(f"{name}: {failed[-1]}; trying the next source")
    if why is not None and only_absent:
        there = ", ".join(cache.cached_names()) or "nothing"
        raise UsageError(
            f"'{name}' is not cached and {why} forbids the network (cached: {there}): "
            f"run 'vitattack models pull {name}' where there is one, with VITATTACK_HOME={files.cache_home()}"
        )
    where = "" if len(failed) == 1 else f" from any of {len(failed)} sources"
    raise UsageError(f"cannot get the weights of '{name}'{where}: {'; '.join(failed)}")


def _from(
    source: Source, weights: WeightSources, name: str, offline: bool, unsafe: bool
) -> tuple[Path, tuple[str, ...] | None]:
    if source.kind == "embedded":
        assert weights.file is not None
        path = EMBEDDED / weights.file
        cache.verify_file(path, weights, name)
        return path, weights.weights_key
    if source.kind == "file":
        path = source.path
        if not path.is_file():
            raise UsageError(f"the file '{path}' does not exist")
        cache.verify_file(path, weights, name)
        return path, weights.weights_key
    found = hub.resolve_timm(source)
    with files.cache_lock(name, lambda: current_listener().note(f"{name}: another process is fetching it, waiting")):
        kept = cache.cached_weights(weights, name)
        if kept is not None:
            return kept, None
        if found.kind == "hf-hub":
            return _from_hub(source, found, weights, name, offline, unsafe)
        return _from_web(source, found, weights, name, offline, unsafe), None


def _from_hub(
    source: Source, there: Source, weights: WeightSources, name: str, offline: bool, unsafe: bool
) -> tuple[Path, tuple[str, ...] | None]:
    """Safetensors stay in the hub's cache; anything else is converted into ours."""
    known = cache.read_pins().get(name)
    path = hub.fetch_from_hub(there, offline=offline, revision=known.revision if known else None)
    found = cache.verify_file(path, weights, name)
    if path.suffix == ".safetensors":
        parse_checkpoint(path)
        _pin(path, found, source, name)
        return path, weights.weights_key
    made = _convert(path, path.name, found, source, weights, name, unsafe)
    _pin(path, found, source, name)
    return made, None


def _from_web(source: Source, there: Source, weights: WeightSources, name: str, offline: bool, unsafe: bool) -> Path:
    file = files.cache_folder("downloads") / safe_file_name(f"{name} {source.text}")
    called = name if there.kind in ("gdrive", "nextcloud") else there.where.split("?")[0].rpartition("/")[2]

    def told(done: int, total: int | None) -> None:
        current_listener().progress(name, done, total or weights.size)

    try:
        if not file.is_file():  # one that could run code and waits for --unsafe-pickle
            if offline:
                raise hub.Absent("it is not in the cache")
            part = file.with_name(file.name + ".part")
            pinned = cache.expected_sha256(weights, name)[0] is not None
            download(there.url, part, size=weights.size, pinned=pinned, progress=told)
            part.replace(file)
        found = cache.verify_file(file, weights, name)
        made = _convert(file, called, found, source, weights, name, unsafe)
        _pin(file, found, source, name)
    except OSError as error:
        raise VitattackError(
            f"cannot write '{file.parent}' ({error.strerror or error}): make room or set VITATTACK_HOME"
        ) from error
    except UsageError as error:
        if not isinstance(error, CouldRunCode) or error.hostile:
            file.unlink(missing_ok=True)  # whole, but not what it should be
        raise
    file.unlink()
    return made


def _convert(
    path: Path, called: str, sha256: str, source: Source, weights: WeightSources, name: str, unsafe: bool
) -> Path:
    found = named_tensors(parse_checkpoint(path, name=called, unsafe=unsafe), called, weights.weights_key)
    return cache.store_converted(found, weights, name, sha256, source.text)


def _pin(path: Path, sha256: str, source: Source, name: str) -> None:
    """Hashes the zoo has are noted too: the revision beside them spares the hub a question."""
    made = cache.Pin(sha256, path.stat().st_size, source.text, cache.utc_now(), hub.revision_of(path))
    if name not in cache.read_pins():
        cache.add_pin(name, made)
