"""The attacks a user can name. Importing `vitattack.attacks` fills the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from vitattack.attacks.base import Attack
from vitattack.core.registry import Registry
from vitattack.threats.base import THREATS

LP = ("linf", "l2")


@dataclass(frozen=True)
class Entry:
    """An attack a user can name, and how to try it quickly (the contract tests run `quick`)."""

    factory: Callable[..., Attack]
    paper: str
    quick: str
    needs_attention: bool = False
    threats: tuple[str, ...] | None = LP  # kinds of threat it is defined for; None: all of them
    black_box: bool = False  # asks for no gradient
    draws: bool = True  # begins with noise; False: the same point for every seed
    foreign: bool = False  # somebody else's code: what it draws may depend on the batch
    stages: Callable[[dict[str, Any]], tuple[str, ...]] | None = None  # names of its stages, given its options

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of threat it is defined for."""
        return THREATS.in_order if self.threats is None else self.threats

    @property
    def summary(self) -> str:
        return (self.factory.__doc__ or "").strip().splitlines()[0]


Factory = TypeVar("Factory", bound=Callable[..., Attack])
ATTACKS: Registry[Entry] = Registry("attack", entry_point_group="vitattack.attacks")


def register(
    name: str,
    *,
    paper: str,
    quick: str,
    needs_attention: bool = False,
    threats: tuple[str, ...] | None = LP,
    black_box: bool = False,
    draws: bool = True,
    foreign: bool = False,
    stages: Callable[[dict[str, Any]], tuple[str, ...]] | None = None,
) -> Callable[[Factory], Factory]:
    def keep(factory: Factory) -> Factory:
        ATTACKS.add(name, Entry(factory, paper, quick, needs_attention, threats, black_box, draws, foreign, stages))
        return factory

    return keep
