"""The attacks a user can name. Names are known at once; the module of an attack is imported when it is asked for.

A new attack is a factory described by `@catalogued` and its name in the table below. A package of your own exposes its
factory under the entry-point group `vitattack.attacks` instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from vitattack.core.errors import UsageError
from vitattack.core.registry import Registry, did_you_mean
from vitattack.text.syntax import AttackSyntax, Call
from vitattack.threats.base import THREATS

if TYPE_CHECKING:
    from vitattack.attacks.base import Attack

LP = ("linf", "l2")


@dataclass(frozen=True)
class Entry:
    """An attack that can be named: its factory, where it comes from, and a form that runs in a blink."""

    factory: Callable[..., Attack]
    paper: str
    quick: str  # the contract tests run it
    needs_attention: bool = False
    threats: tuple[str, ...] | None = LP  # kinds of threat it is defined for; None: all of them
    black_box: bool = False  # asks for no gradient
    draws: bool = True  # begins with noise; False: the same point for every seed
    foreign: bool = False  # code of another package: what it draws may depend on the batch

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of threat it is defined for."""
        return THREATS.in_order if self.threats is None else self.threats

    @property
    def summary(self) -> str:
        return (self.factory.__doc__ or "").strip().splitlines()[0]


Factory = TypeVar("Factory", bound=Callable[..., Any])
_DESCRIBED: dict[Callable[..., Any], Entry] = {}


def catalogued(
    *,
    paper: str,
    quick: str,
    needs_attention: bool = False,
    threats: tuple[str, ...] | None = LP,
    black_box: bool = False,
    draws: bool = True,
    foreign: bool = False,
) -> Callable[[Factory], Factory]:
    """Describe the decorated factory for the catalogue; its name is in the table, or that of an entry point."""

    def decorate(factory: Factory) -> Factory:
        _DESCRIBED[factory] = Entry(factory, paper, quick, needs_attention, threats, black_box, draws, foreign)
        return factory

    return decorate


class Catalogue(Registry[Entry]):
    """The entries of attacks by name."""

    def _imported(self, name: str, target: str) -> Entry:
        factory: Any = super()._imported(name, target)
        if isinstance(factory, Entry):
            return factory
        if factory not in _DESCRIBED:
            raise UsageError(
                f"{target} says nothing of the attack '{name}': put @catalogued(paper=..., quick=...) on it"
            )
        return _DESCRIBED[factory]


ATTACKS = Catalogue("attack", entry_point_group="vitattack.attacks")

# Factories have the names of their attacks.
BUILT_IN = {
    "aas.variants": ("aas", "aas_literal", "fp64", "given", "random_scales", "scale", "scale_search"),
    "auto.attack": ("auto",),
    "autoattack.autoattack": ("apgd", "apgd_ce", "apgd_dlr", "apgd_t", "autoattack", "eot", "mm", "targets"),
    "autoattack.reference": ("autoattack_ref",),
    "black_box.square": ("square",),
    "black_box.transfer": ("transfer",),
    "foreign.torchattacks": ("torchattacks",),
    "gradient.variants": (
        *("cw", "dlr", "fgsm", "fgsm_rs", "gama", "gaussian", "md", "mifpe", "mim", "pgd", "pma", "random"),
        *("restarts", "worst"),
    ),
    "minimum_norm.cw_l2": ("cw_l2",),
    "minimum_norm.fab": ("fab", "fab_t"),
    "perceptual.attack": ("perceptual",),
    "spatial.attack": ("spatial", "spatial_random"),
}
for _module, _names in BUILT_IN.items():
    for _name in _names:
        ATTACKS.add(_name, f"vitattack.attacks.{_module}:{_name}")


def check_names(text: str) -> AttackSyntax:
    """Parse a text, and refuse it if it names an attack that does not exist; no attack is imported."""
    syntax = AttackSyntax.of(text)
    if isinstance(syntax.root, Call):  # what else it may be is refused when it is built
        _check(syntax.root)
    return syntax


def _check(node: Call) -> None:
    if node.name not in ATTACKS:
        raise UsageError(did_you_mean(ATTACKS.kind, node.name, ATTACKS, ATTACKS.renamed))
    if any(node.name in names for names in BUILT_IN.values()):  # of these, plain arguments that are calls are attacks
        for part in node.args:
            if isinstance(part, Call):
                _check(part)
