"""Versions of the packages that a number was computed with, and the words for a number computed with others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PACKAGES = ("vitattack", "torch", "torchvision", "timm", "numpy", "autoattack", "pyautoattack", "torchattacks")
# Packages that compute what is recorded: models and their arithmetic.
COMPUTING = ("torch", "timm")


def package_version(name: str) -> str | None:
    """Version of an installed package."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def package_versions(names: Sequence[str] = PACKAGES) -> dict[str, str | None]:
    """Versions of installed packages by name."""
    return {name: package_version(name) for name in names}


def other_versions(provenance: Any) -> tuple[str, ...]:
    """A doubt about a stored number if torch or timm have changed since; nothing if they have not."""
    before = provenance.get("versions") if isinstance(provenance, Mapping) else None
    if not isinstance(before, Mapping):
        return ()
    changed = [name for name in COMPUTING if name in before and before[name] != package_version(name)]
    if not changed:
        return ()
    was = " and ".join(f"{name} {before[name] or 'missing'}" for name in changed)
    now = " and ".join(f"{name} {package_version(name) or 'missing'}" for name in changed)
    return (f"stored with {was}, and this is {now}: to compute it anew use --fresh",)


def mixed_versions(sessions: Sequence[Mapping[str, str | None]]) -> tuple[str, ...]:
    """A doubt if the sessions of one run had different versions of torch or timm."""
    seen = {name: list(dict.fromkeys(str(one[name]) for one in sessions if name in one)) for name in COMPUTING}
    return tuple(
        f"parts were computed with {name} {' and '.join(found)}: to compute all with one use --fresh"
        for name, found in seen.items()
        if len(found) > 1
    )
