"""The attacks a user can name. Importing `vitattack.attacks` fills the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vitattack.attacks.base import Attack
from vitattack.registry import Registry


@dataclass(frozen=True)
class Entry:
    """An attack a user can name, and how to try it quickly (the contract tests run `quick`)."""

    factory: Callable[..., Attack]
    paper: str
    quick: str
    needs_attention: bool = False

    @property
    def summary(self) -> str:
        return (self.factory.__doc__ or "").strip().splitlines()[0]


ATTACKS: Registry[Entry] = Registry("attack", entry_point_group="vitattack.attacks")

Factory = Callable[..., Attack]


def register(name: str, *, paper: str, quick: str, needs_attention: bool = False) -> Callable[[Factory], Factory]:
    def keep(factory: Factory) -> Factory:
        ATTACKS.add(name, Entry(factory, paper, quick, needs_attention))
        return factory

    return keep
