"""Repositories of the Hugging Face hub that hold a model, fetched file by file into the hub's own cache."""

from __future__ import annotations

from pathlib import Path

from vitattack.core import files
from vitattack.core.errors import UsageError
from vitattack.models.hugging_face.folder import (
    ADAPTER,
    CONFIG,
    PROCESSORS,
    WEIGHTS,
    WEIGHTS_INDEX,
    ModelFolder,
    listed_shards,
    read_json_file,
    read_model_folder,
    refuse_code,
)
from vitattack.models.weights import hub
from vitattack.models.weights.sources import Source, parse_source

PREFIXES = ("hf:", "hf-hub:")


def repository(text: str) -> Source:
    """The hub source of `hf:OWNER/NAME[@REVISION]` or `hf-hub:OWNER/NAME`."""
    source = parse_source("hf-hub:" + text.partition(":")[2])
    if source.hub[2] is not None:
        raise UsageError(f"model '{text}' names a file of a repository: write hf:{source.hub[0]}")
    return source


def fetch_model(text: str) -> ModelFolder | None:
    """Fetch the model of a repository of transformers, checked before its weights; None for one of timm."""
    source = repository(text)
    folder = _fetch(source, CONFIG).parent
    config = read_json_file(folder / CONFIG, f"{text}/{CONFIG}")
    if "architectures" not in config and "model_type" not in config and "architecture" in config:
        return None
    refuse_code(config, text)
    for optional in (ADAPTER, *PROCESSORS):
        _fetch_if_any(source, optional)
    adapter = (folder / ADAPTER).exists()
    if not adapter and _fetch_if_any(source, WEIGHTS) is None and _fetch_if_any(source, WEIGHTS_INDEX) is not None:
        for shard in listed_shards(folder, text):
            _fetch(source, shard)
    return read_model_folder(folder, text)


def _fetch(source: Source, file: str) -> Path:
    repo, revision, _ = source.hub
    at = f"@{revision}" if revision else ""
    wanted = parse_source(f"hf-hub:{repo}{at}/{file}")
    try:
        return hub.fetch_from_hub(wanted, offline=files.offline_variable() is not None)
    except hub.NoSuchFile:
        raise
    except UsageError as error:
        raise UsageError(f"cannot fetch hf:{repo} ({error}): connect and run again, or give a local file") from error


def _fetch_if_any(source: Source, file: str) -> Path | None:
    """Fetch a file that a repository need not have; without a network, what the hub's cache has."""
    try:
        return _fetch(source, file)
    except hub.NoSuchFile:
        return None
    except UsageError:
        if files.offline_variable() or hub.unreachable_host():
            return None
        raise
