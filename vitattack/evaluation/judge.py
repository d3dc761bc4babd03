"""The judge: a sample counts as fooled if the plain fp32 victim errs on its candidate twice, inside the budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from vitattack.attacks.base import Crafted
from vitattack.models.victim import Victim, frozen
from vitattack.records.record import SampleRecord, Status
from vitattack.threats.base import Threat

# Evidence that has a column of its own in a record, or goes into other columns.
COLUMNS = {"fooled", "first_fooled", "forwards", "backwards"}


def clean_predictions(victim: Victim, x: Tensor) -> Tensor:
    """(B,) plain predictions, -1 for outputs that are not finite."""
    with frozen(victim), torch.no_grad():
        return _predict(victim(x))


def judge(
    victim: Victim,
    threat: Threat,
    rows: Sequence[int],
    x: Tensor,
    y: Tensor,
    clean: Tensor,
    crafted: Crafted,
    forwards: Tensor,
    backwards: Tensor,
    others: Mapping[str, Tensor] | None = None,
) -> list[SampleRecord]:
    """Records of one batch. `crafted` holds candidates for the clean-correct samples only, in order; costs likewise.

    A success counts if two forwards agree on it, the second at another batch size. One that is not reproduced is `fragile`:
    the sample counts as robust, and the interval of the result covers both readings. Candidates outside the budget are
    discarded before their prediction is computed. `others` is evidence on the samples that were not attacked.
    """
    attacked = clean == y
    number = int(attacked.sum())
    allowed = threat.allows(x[attacked], crafted.x_adv, crafted.evidence)
    first, second = torch.full((2, number), -1, dtype=torch.long, device=x.device)
    spent = torch.zeros(number, dtype=torch.long, device=x.device)
    with frozen(victim), torch.no_grad():
        if bool(allowed.any()):
            first[allowed] = _predict(victim(crafted.x_adv[allowed]))
            spent += allowed.long()
        claimed = crafted.evidence.get("fooled", torch.zeros_like(allowed)) & allowed
        finite = first >= 0
        success = finite & (first != y[attacked])
        doubtful = success | (claimed & finite)
        if bool(doubtful.any()):
            alone = int(allowed.sum()) == 1  # judged as a pair, since one image has no halves
            second[doubtful] = _again(victim, crafted.x_adv[doubtful], batch=int(allowed.sum()))
            spent += doubtful.long() * (2 if alone else 1)
    confirmed = success & (second >= 0) & (second != y[attacked])
    fragile = doubtful & ~confirmed

    status: list[Status] = ["invalid" if c < 0 else "clean_wrong" for c in clean.tolist()]
    records = []
    position = aside = 0
    others = others or {}
    sizes = threat.size(x[attacked], crafted.x_adv).tolist()
    for i, row in enumerate(rows):
        if not bool(attacked[i]):
            spent_aside = [int(others[name][aside]) if name in others else 0 for name in ("forwards", "backwards")]
            records.append(
                SampleRecord(
                    index=row,
                    label=int(y[i]),
                    clean=int(clean[i]),
                    adversarial=-1,
                    status=status[i],
                    size=0.0,
                    fragile=False,
                    violation=False,
                    first_fooled=-1,
                    forwards=1 + spent_aside[0],
                    backwards=spent_aside[1],
                    evidence=_evidence(others, aside),
                )
            )
            aside += 1
            continue
        k = position
        position += 1
        valid = bool(allowed[k]) and bool(finite[k])
        outcome: Status = "fooled" if bool(confirmed[k]) else "robust" if valid else "invalid"
        size = sizes[k] if sizes[k] == sizes[k] and sizes[k] != float("inf") else -1.0
        records.append(
            SampleRecord(
                index=row,
                label=int(y[i]),
                clean=int(clean[i]),
                adversarial=int(first[k]),
                status=outcome,
                size=round(size, 8),
                fragile=bool(fragile[k]),
                violation=not bool(allowed[k]),
                first_fooled=int(crafted.evidence["first_fooled"][k]) if "first_fooled" in crafted.evidence else -1,
                forwards=1 + int(forwards[k]) + int(spent[k]),
                backwards=int(backwards[k]),
                evidence=_evidence(crafted.evidence, k),
            )
        )
    return records


def _evidence(rows: Mapping[str, Tensor], at: int) -> dict[str, int | float | str]:
    return {name: row[at].item() for name, row in sorted(rows.items()) if name not in COLUMNS}


def _predict(logits: Tensor) -> Tensor:
    return torch.where(torch.isfinite(logits).all(1), logits.argmax(1), -1)


def _again(victim: Victim, x_adv: Tensor, batch: int) -> Tensor:
    """Predictions at another batch size than the first forward's: half of it, or two for a single image."""
    if batch == 1:
        return _predict(victim(torch.cat([x_adv, x_adv])))[:1]
    return torch.cat([_predict(victim(part)) for part in torch.split(x_adv, max(1, batch // 2))])
