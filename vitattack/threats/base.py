"""Threats: the images an attacker may show in place of the clean one, as values with a canonical text.

A new kind of threat is one file with a class and a `ThreatKind`, and one line in the table below; a package of your own
exposes its `ThreatKind` under the entry-point group `vitattack.threats`. torch is imported where pixels are touched, so
that a threat can be read without it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from vitattack.core.errors import UsageError
from vitattack.core.registry import Registry, did_you_mean

if TYPE_CHECKING:
    from torch import Tensor

Evidence = Mapping[str, "Tensor"]
NOTHING: Evidence = {}


class Threat(Protocol):
    """The set of images an attacker may show; its text is canonical."""

    @property
    def kind(self) -> str: ...

    def size(self, x: Tensor, x_adv: Tensor) -> Tensor:
        """(B,) how far each image was changed, in the threat's own measure."""

    def allows(self, x: Tensor, x_adv: Tensor, evidence: Evidence = NOTHING) -> Tensor:
        """(B,) whether each image is one the attacker may show; `evidence` is what the attack says of it."""


@dataclass(frozen=True)
class ThreatKind:
    """A kind of threat that can be named: the reader of what follows its colon, and an example of the whole text."""

    parse: Callable[[str], Threat]
    example: str
    listed: bool = True  # a comma begins another budget, as in linf:2/255,4/255


THREATS: Registry[ThreatKind] = Registry("threat", entry_point_group="vitattack.threats")
THREATS.add_lazily(
    "vitattack.threats",
    {
        "linf": "lp:LINF",
        "l2": "lp:L2",
        "spatial": "spatial:SPATIAL",
        "l1": "sparse:L1",
        "l0": "sparse:L0",
        "patch": "patch:PATCH",
    },
)


def parse_threat(text: str) -> Threat:
    """The threat of a text: `linf:8/255`, `l2:0.5`, `l1:12`, `l0:20px`, `patch:16px`, `spatial`, `spatial:16px,30deg`."""
    kind, colon, rest = text.strip().partition(":")
    if kind.lower() in THREATS:
        return THREATS[kind.lower()].parse(rest)
    if colon:
        raise UsageError(did_you_mean("threat", kind, THREATS))
    budget = kind or "8/255"
    raise UsageError(f"threat '{text}' names no norm: write linf:{budget} or l2:{budget}")


def union_members(text: str) -> tuple[str, ...]:
    """Texts of the threats of a union, as in `linf:8/255+l2:0.5+l1:12`; the text itself if it is none."""
    return tuple(re.split(r"\+(?=\s*[A-Za-z])", text))  # l2:1e+1 is a number


def parse_threats(text: str) -> tuple[Threat, ...]:
    """One threat for each budget of `linf:1/255,2/255,4/255`; a budget without a norm takes the one before it.

    `linf:8/255+l2:0.5+l1:12` is a union: one threat of each kind, among which the attacker chooses for every image.
    """
    members = union_members(text)
    if len(members) > 1:
        return _parse_union(members)
    kind = text.strip().partition(":")[0].lower()
    if kind in THREATS and not THREATS[kind].listed:
        return (parse_threat(text),)
    threats: list[Threat] = []
    for part in text.split(","):
        if threats and not part.strip():
            raise UsageError(f"a budget of '{text}' is empty, which is not a number: drop the comma or add the budget")
        kind = part.partition(":")[0] if ":" in part else kind
        threats.append(parse_threat(part if ":" in part or not kind or not threats else f"{kind}:{part.strip()}"))
    texts = [str(threat) for threat in threats]
    if len(set(texts)) < len(texts):
        raise UsageError(f"a budget is named twice in '{text}': name each once")
    return tuple(threats)


def _parse_union(members: tuple[str, ...]) -> tuple[Threat, ...]:
    threats = [threat for member in members for threat in parse_threats(member)]
    kinds = [threat.kind for threat in threats]
    if len(threats) > len(members) or len(set(kinds)) < len(kinds):
        raise UsageError(
            f"a union has one budget of each kind, '{'+'.join(members)}' has several: write linf:8/255+l2:0.5+l1:12"
        )
    return tuple(threats)


def examples(kinds: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """A text of each of these kinds of threat, of all kinds without any."""
    return tuple(THREATS[kind].example for kind in (THREATS.in_order if kinds is None else kinds))


def per_row(values: Tensor, like: Tensor) -> Tensor:
    """(B,) shaped to multiply (B, C, H, W)."""
    return values.view(-1, *([1] * (like.dim() - 1)))
