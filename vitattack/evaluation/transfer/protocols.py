"""Protocols of transfer studies by name: an attack and a threat as published. No torch is needed."""

from __future__ import annotations

from dataclasses import dataclass

from vitattack.core.errors import UsageError
from vitattack.core.registry import did_you_mean
from vitattack.evaluation.transfer.command_words import DEFAULT_ATTACK

DEFAULT_THREAT = "linf:8/255"


@dataclass(frozen=True)
class TransferProtocol:
    """What candidates are crafted with; success is always counted on images that source and target both get right."""

    attack: str
    threat: str
    source: str


TRANSFER_PROTOCOLS = {
    "transferattack": TransferProtocol(
        "mim(stop=never)",
        "linf:16/255",
        "TransferAttack (Wang et al. 2026): MI-FGSM, 10 steps of eps/10, decay 1, from the clean image",
    ),
}


def settled(protocol: str | None, attack: str | None, threat: str | None) -> tuple[str, str]:
    """The attack and the threat: as given, else those of the protocol, else the defaults."""
    if protocol is None:
        return attack or DEFAULT_ATTACK, threat or DEFAULT_THREAT
    if protocol not in TRANSFER_PROTOCOLS:
        raise UsageError(did_you_mean("transfer protocol", protocol, TRANSFER_PROTOCOLS))
    known = TRANSFER_PROTOCOLS[protocol]
    if threat is not None and threat != known.threat:
        raise UsageError(f"the protocol '{protocol}' is under {known.threat}: drop --threat {threat}, or --protocol")
    return attack or known.attack, known.threat
