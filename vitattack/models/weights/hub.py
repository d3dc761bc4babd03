"""Files of the Hugging Face hub, fetched by its own client into its own cache; timm's weights are files of the hub."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from vitattack.core import files, progress
from vitattack.core.errors import UsageError, first_line
from vitattack.core.registry import did_you_mean
from vitattack.core.words import printable, without_secrets
from vitattack.models.weights.sources import Source, parse_source, safe_address


class Absent(UsageError):
    """The file is not on this machine, and the network was not to be used."""


class NoSuchFile(UsageError):
    """The repository does not have the file."""


FILES = ("model.safetensors", "pytorch_model.bin")  # tried in order where a source names no file


def resolve_timm(source: Source) -> Source:
    """Return the hub source or the address that timm would fetch for a timm source; other sources unchanged."""
    if source.kind != "timm":
        return source
    import timm
    from timm.models import get_pretrained_cfg, split_model_name_tag

    arch, tag = split_model_name_tag(source.where)
    if not timm.is_model(arch):
        raise UsageError(did_you_mean("architecture", arch, timm.list_models()))
    known = [name.partition(".")[2] for name in timm.list_pretrained(f"{arch}.*")]
    if tag not in known:
        raise UsageError(f"'{arch}' has no weights '{tag}': timm has {', '.join(known) or 'none'}")
    cfg: Any = get_pretrained_cfg(source.where)
    if cfg.hf_hub_id:
        file = f"/{cfg.hf_hub_filename}" if cfg.hf_hub_filename else ""
        return parse_source(f"hf-hub:{cfg.hf_hub_id}{file}")
    return parse_source(cfg.url)


def fetch_from_hub(source: Source, *, offline: bool, revision: str | None = None) -> Path:
    """Fetch the file of a hub source into the hub's cache. `revision` is used where the source names none."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    repo, own_revision, file = source.hub
    unreachable = None if offline else unreachable_host()
    local = offline or unreachable is not None
    for candidate in (file,) if file else FILES:
        try:
            with discreet_client():
                return Path(
                    hf_hub_download(
                        repo, candidate, revision=own_revision or revision, local_files_only=local, **_progress()
                    )
                )
        except LocalEntryNotFoundError as error:
            if local and not file and candidate != FILES[-1]:
                continue
            if offline:
                raise Absent("it is not in the hub's cache") from error
            if unreachable:
                raise UsageError(f"{unreachable} cannot be reached, and it is not in the hub's cache") from error
            raise UsageError(f"it is not in the hub's cache and cannot be fetched ({_reason(error)})") from error
        except EntryNotFoundError as error:
            if file or candidate == FILES[-1]:
                raise NoSuchFile(f"the repository {repo} has no file {file or ' or '.join(FILES)}") from error
        except Exception as error:  # the client and its transport each raise their own kinds
            raise UsageError(f"the hub does not give it ({_reason(error)})") from error
    raise AssertionError


@contextmanager
def offline_if_asked() -> Iterator[None]:
    """Make our rules for the network hold for libraries that call the hub's client themselves, as timm does."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or files.offline_variable() is not None or unreachable_host() is not None
    try:
        with discreet_client():
            yield
    finally:
        constants.HF_HUB_OFFLINE = before


def unreachable_host() -> str | None:
    """Return the hub's host if its name cannot be resolved, for which its client would retry for half a minute.

    Every way to the hub asks this first, so an HF_ENDPOINT that is not encrypted is refused here, as other addresses are.
    """
    from huggingface_hub import constants

    try:
        safe_address(constants.ENDPOINT)
    except UsageError as error:
        raise UsageError(f"HF_ENDPOINT: {error}") from None
    host = urlsplit(constants.ENDPOINT).hostname
    if getproxies():  # the proxy resolves names that this machine cannot
        return None
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return host
    return None


def revision_of(path: Path) -> str | None:
    """Return the commit that a file in the hub's cache belongs to."""
    match = re.search(r"/snapshots/([0-9a-f]{40})/", path.as_posix())
    return match[1] if match else None


@contextmanager
def discreet_client() -> Iterator[None]:
    """Keep the client from warning, since errors are reported once, in our words, and from sending a token in the clear."""
    from huggingface_hub import constants

    logger = logging.getLogger("huggingface_hub")
    level, no_token = logger.level, constants.HF_HUB_DISABLE_IMPLICIT_TOKEN
    logger.setLevel(logging.ERROR)
    constants.HF_HUB_DISABLE_IMPLICIT_TOKEN = no_token or urlsplit(constants.ENDPOINT).scheme != "https"
    try:
        yield
    finally:
        logger.setLevel(level)
        constants.HF_HUB_DISABLE_IMPLICIT_TOKEN = no_token


def _reason(error: Exception) -> str:
    return printable(without_secrets(f"{type(error).__name__}: {first_line(error)}"))


def _progress() -> dict[str, Any]:
    """Return the arguments that replace the client's progress bars by ours, where it allows that."""
    import inspect

    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils.tqdm import disable_progress_bars
    from tqdm import tqdm

    if "tqdm_class" not in inspect.signature(hf_hub_download).parameters:
        disable_progress_bars()
        return {}

    told = progress.current_listener()

    class Told(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **settings: Any) -> None:
            settings.pop("name", None)
            super().__init__(*args, **{**settings, "disable": True})
            self._so_far, self._all = int(settings.get("initial") or 0), settings.get("total")
            self._what = printable(str(settings.get("desc") or "file"), 60)

        def update(self, n: float | None = 1) -> bool | None:
            self._so_far += int(n or 0)
            told.progress(self._what, self._so_far, int(self._all) if self._all else None)
            return None

    return {"tqdm_class": Told}


def in_hub_cache(source: Source, revision: str | None) -> bool:
    """Whether a hub source is in the hub's cache; the network is not used."""
    from huggingface_hub import try_to_load_from_cache

    repo, own_revision, file = source.hub
    paths = [try_to_load_from_cache(repo, f, revision=own_revision or revision) for f in ((file,) if file else FILES)]
    return any(isinstance(path, str) for path in paths)
