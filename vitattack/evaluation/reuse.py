"""Evidence that stored records are those of the model at hand, beyond equal digests.

Beside the records of a job lie the logits of its first images. Whoever reuses records with the model loaded asks it again;
a model that answers otherwise is another function, whatever its digest says.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitattack.core.errors import UsageError
from vitattack.core.files import write_atomically
from vitattack.core.rng import SampleRng, seeded
from vitattack.core.runtime import out_of_memory
from vitattack.core.tensor_text import packed, unpacked
from vitattack.data import DataSet
from vitattack.evaluation.batch_runner import read_batch
from vitattack.models.victim import Victim, frozen
from vitattack.records.sealed import load_intact, sealed_text

FILE = "probe.json"
PROBED = 8  # images
# Relative to the largest logit: other processors round differently, other functions differ by more.
TOLERANCE = 1e-4


def keep_or_confirm(folder: Path, victim: Victim, data: DataSet, *, fresh: bool) -> None:
    """Store the logits of the first images in the folder of a job that begins; confirm those of one that goes on."""
    if not fresh and _stored(folder) is not None:
        confirm(folder, victim, data)
        return
    rows = data.alike(data.rows[:PROBED])
    for logits in _answers(victim, data, rows, 1):
        write_atomically(folder / FILE, sealed_text({"rows": list(rows), **packed(logits)}))


def confirm(folder: Path, victim: Victim, data: DataSet) -> None:
    """Refuse to reuse the records in a folder if the model no longer gives the logits stored beside them."""
    stored = _stored(folder)
    if stored is None:
        return
    rows, before = stored
    now, *more = _answers(victim, data, rows, 2) or (before,)
    if any(not torch.equal(now, again) for again in more):
        return  # a random model: that it answers otherwise says nothing
    if now.shape == before.shape and torch.allclose(now, before, TOLERANCE, TOLERANCE * _size(before), equal_nan=True):
        return
    gap = f" by up to {float((now - before).abs().max()):.2g}" if now.shape == before.shape else ""
    raise UsageError(
        f"{folder} is of another function than '{victim.name}' is now, its logits on the first images differ{gap}: "
        "run with --fresh, or give another --out"
    )


def unhashed(unknown: Sequence[str]) -> dict[str, Any]:
    """The part of a model's record that says what has no digest; nothing where all has one."""
    return {"unhashed": list(unknown)} if unknown else {}


def _size(logits: Tensor) -> float:
    finite = logits[torch.isfinite(logits)]
    return 1 + float(finite.abs().max()) if finite.numel() else 1.0


def _answers(victim: Victim, data: DataSet, rows: Sequence[int], count: int) -> list[Tensor]:
    """Logits of some images, several times; a random model draws the same in every session. Nothing where memory ends."""
    device = victim.mean.device
    x, _, _ = read_batch(data, rows, victim, device)
    with seeded(SampleRng(0, tuple(rows)).child("probe")), frozen(victim), torch.no_grad():
        try:
            return [victim(x).detach().float().cpu().contiguous() for _ in range(count)]
        except (RuntimeError, MemoryError) as error:
            if out_of_memory(error):
                return []
            raise


def _stored(folder: Path) -> tuple[list[int], Tensor] | None:
    content = load_intact(folder / FILE) or {}
    try:
        return list(map(int, content["rows"])), unpacked(content)
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError):  # missing, or damaged
        return None
