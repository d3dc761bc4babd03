"""Names of architectures, known without importing torch or timm: a misspelt one is answered at once."""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from vitattack.core.errors import UsageError
from vitattack.core.registry import did_you_mean
from vitattack.models.clip.texts import OPEN_CLIP

OWN = (
    *(f"xcit_{size}_12_p4_32" for size in ("small", "medium", "large")),
    *(f"xcit_{size}_12_p16_224" for size in ("medium", "large")),
    *(f"vit_{size}_patch{patch}_32" for size in ("tiny", "small", "base", "large") for patch in (2, 4)),
    *(f"vit_{size}_convstem_224" for size in ("small", "medium", "base")),
    *(f"convnext_{size}_convstem" for size in ("tiny", "small", "base", "large")),
    *("convnext_iso_convstem", "resnet50_32", "wideresnet_silu_28_10", "wideresnet_silu_70_16"),
    *("small:tiny_vit_32", "small:tiny_cnn_32"),
)


def check_architecture(arch: str) -> None:
    """Refuse a name that neither vitattack nor timm has."""
    if arch.startswith(OPEN_CLIP):
        if find_spec("open_clip") is None:
            raise UsageError(f"'{arch[:60]}' needs open_clip, which is not installed: pip install 'vitattack[clip]'")
        return
    if arch.startswith("tora:"):
        check_architecture(arch.removeprefix("tora:"))
        return
    if arch in OWN or _is_registered(arch):
        return
    source = _timm_source()
    stem = arch.partition(".")[0]
    if re.fullmatch(r"\w+", stem) and (f"def {stem}(" in source or f"'{stem}'" in source):  # in quotes: former names
        return
    raise UsageError(
        did_you_mean(
            "architecture", arch, {*OWN, f"{OPEN_CLIP}NAME", *re.findall(r"^def (\w+)\(pretrained", source, re.M)}
        )
    )


def _is_registered(arch: str) -> bool:
    """Whether somebody registered the name; nobody has while the registry is not even imported."""
    build = sys.modules.get("vitattack.models.architectures.build")
    return build is not None and arch in build.ARCHITECTURES


@cache
def _timm_source() -> str:
    spec = find_spec("timm")
    assert spec is not None and spec.origin is not None  # timm is a dependency
    return "\n".join(path.read_text() for path in sorted((Path(spec.origin).parent / "models").glob("*.py")))
