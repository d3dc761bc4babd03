"""The catalogue of attacks. Names are known without importing any attack; an entry imports its module on first use.

To add an attack, decorate its factory with `@catalogued` and list its name in `BUILT_IN`. Other packages expose their
factories under the entry-point group `vitattack.attacks` instead.
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
LP_AND_L1 = (*LP, "l1")
EVERY_LP = (*LP_AND_L1, "l0")


@dataclass(frozen=True)
class Entry:
    """Catalogue entry of an attack: its factory, its paper, a text that runs almost instantly, and what it needs."""

    factory: Callable[..., Attack]
    paper: str
    quick: str  # run by the contract tests
    needs_attention: bool = False
    threats: tuple[str, ...] | None = LP  # kinds of threat it is defined for; None: all of them
    black_box: bool = False  # uses no gradients
    draws: bool = True  # uses random numbers; False: the same result for every seed
    foreign: bool = False  # code of another package, whose randomness may depend on the batch

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of threat the attack is defined for."""
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
    """Describe the decorated factory for the catalogue; its name comes from `BUILT_IN` or from an entry point."""

    def decorate(factory: Factory) -> Factory:
        _DESCRIBED[factory] = Entry(factory, paper, quick, needs_attention, threats, black_box, draws, foreign)
        return factory

    return decorate


class Catalogue(Registry[Entry]):
    """Registry of attacks whose targets are factories with a `@catalogued` description."""

    def _imported(self, name: str, target: str) -> Entry:
        factory: Any = super()._imported(name, target)
        if isinstance(factory, Entry):
            return factory
        if factory not in _DESCRIBED:
            raise UsageError(
                f"{target} does not describe the attack '{name}': decorate it with @catalogued(paper=..., quick=...)"
            )
        return _DESCRIBED[factory]


ATTACKS = Catalogue("attack", entry_point_group="vitattack.attacks")

# Names by module; a factory has the name of its attack.
BUILT_IN = {
    "aas.variants": ("aas", "aas_literal", "fp64", "given", "random_scales", "scale", "scale_search"),
    "auto.attack": ("auto",),
    "autoattack.autoattack": ("apgd", "apgd_ce", "apgd_dlr", "apgd_t", "autoattack", "eot", "mm", "targets"),
    "autoattack.reference": ("autoattack_ref",),
    "black_box.noise": ("gaussian", "random"),
    "black_box.square": ("square",),
    "black_box.transfer": ("transfer",),
    "compose": ("restarts", "worst"),
    "foreign.torchattacks": ("torchattacks",),
    "gradient.variants": ("cw", "dlr", "fgsm", "fgsm_rs", "gama", "md", "mifpe", "mim", "pgd", "pma"),
    "minimum_norm.cw_l2": ("cw_l2",),
    "minimum_norm.ddn": ("ddn",),
    "minimum_norm.deepfool": ("deepfool",),
    "minimum_norm.fab": ("fab", "fab_t"),
    "minimum_norm.fmn": ("fmn",),
    "minimum_norm.sigma_zero": ("sigma_zero",),
    "patch.attack": ("patch_pgd",),
    "patch.patch_fool": ("patch_fool",),
    "patch.universal": ("patch_universal",),
    "perceptual.attack": ("perceptual",),
    "spatial.attack": ("spatial", "spatial_random"),
    "universal.perturbation": ("universal",),
    "views.gradients": ("attention_fool", "pna", "sgm", "tgr", "vdc"),
    "views.inputs": ("admix", "di", "patchout", "si", "ti"),
}
ATTACKS.add_lazily(
    "vitattack.attacks", {name: f"{module}:{name}" for module, names in BUILT_IN.items() for name in names}
)


def attacks_made_for(kind: str) -> tuple[str, ...]:
    """Attacks that are defined for threats of one kind only, such as patches."""
    return tuple(name for name in ATTACKS if ATTACKS[name].kinds == (kind,))


def check_attack_names(text: str) -> AttackSyntax:
    """Parse a text and refuse unknown names of attacks, without importing any."""
    syntax = AttackSyntax.of(text)
    if isinstance(syntax.root, Call):  # anything else is refused when the attack is built
        _check(syntax.root)
    return syntax


def check_attack_name(name: str) -> None:
    """Refuse a name that no attack has, without importing any."""
    if name not in ATTACKS:
        raise UsageError(did_you_mean(ATTACKS.kind, name, ATTACKS, ATTACKS.renamed))


def _check(node: Call) -> None:
    check_attack_name(node.name)
    if any(node.name in names for names in BUILT_IN.values()):  # their positional arguments that are calls are attacks
        for part in node.args:
            if isinstance(part, Call):
                _check(part)
