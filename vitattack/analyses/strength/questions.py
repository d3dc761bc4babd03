"""Questions about the strength of attacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from vitattack.analyses.base import Analysis, at_least
from vitattack.core.errors import UsageError


@dataclass(frozen=True)
class EpsSweep(Analysis):
    """Robust accuracy over growing budgets: whether it falls all the way, and to zero.

    A larger ball holds the smaller one, so that a rise is a failure of the attack; accuracy that stays where every image
    can be destroyed is a sign of masked gradients.
    """

    work: ClassVar[str] = "vitattack.analyses.strength.eps_sweep:sweep"
    paper: ClassVar[str] = "Debenedetti et al. 2023, Fig. 3"
    threat: ClassVar[str | None] = "linf:0,2/255,4/255,6/255,8/255,10/255,12/255,16/255,32/255,64/255"

    attack: str = "pgd(steps=20)"

    def __post_init__(self) -> None:
        if not self.attack:
            raise UsageError("attack= names no attack: write attack=pgd")


@dataclass(frozen=True)
class Curve(Analysis):
    """Robust accuracy at every budget of a norm, from the smallest perturbations that one run finds.

    Attacks that minimise the norm run once; an image is robust at a budget if none of them found it a smaller perturbation that
    fools the plain model. Several attacks are also compared: the median they found, and AttackBench's optimality.
    """

    work: ClassVar[str] = "vitattack.analyses.strength.curve:curve"
    paper: ClassVar[str] = "AttackBench (Cina et al., AAAI 2025)"
    images: ClassVar[int | None] = 100

    norm: Literal["linf", "l2", "l1", "l0"] = "l2"
    attacks: tuple[str, ...] = ("fmn",)
    at: tuple[str, ...] = ()  # budgets to show; without any, usual ones of the norm

    def __post_init__(self) -> None:
        if not self.attacks:
            raise UsageError("attacks= names none: write attacks=fmn,ddn")


@dataclass(frozen=True)
class Effectiveness(Analysis):
    """Loss of attacks of few steps against that of an oracle of many: d_k, over checkpoints too.

    d_k = (L(x + delta_k) - L(x + delta_oracle)) / L(x + delta_oracle) with cross-entropy losses averaged over the images, PGD
    with steps of 1.5 eps/k from a uniform start. Near zero, k steps are as strong as the oracle. The folder of a training run
    stands for its checkpoints, one for each epoch that was kept.
    """

    work: ClassVar[str] = "vitattack.analyses.strength.effectiveness:effectiveness"
    paper: ClassVar[str] = "Debenedetti et al. 2023, Eq. 2 and Fig. 7"
    threat: ClassVar[str | None] = "linf:8/255"
    images: ClassVar[int | None] = 32
    of_runs: ClassVar[bool] = True

    steps: tuple[int, ...] = (1, 2, 5, 10)
    oracle: int = 200
    seeds: int = 3

    def __post_init__(self) -> None:
        check_steps("effectiveness", "steps", self.steps)
        at_least("effectiveness", "oracle", self.oracle, 1)
        at_least("effectiveness", "seeds", self.seeds, 1)


@dataclass(frozen=True)
class Convergence(Analysis):
    """Final losses of PGD over steps and restarts, and their way in one long run.

    Runs of their own for each number of steps, with steps of 1.5 eps/n, from several starts, on images that are classified
    correctly; then `long` steps of `long_step` eps, with the loss after each. The paper takes 1 to 500 steps and 20 starts.
    """

    work: ClassVar[str] = "vitattack.analyses.strength.convergence:convergence"
    paper: ClassVar[str] = "Debenedetti et al. 2023, Fig. 5 and 6"
    threat: ClassVar[str | None] = "linf:8/255"
    images: ClassVar[int | None] = 8

    steps: tuple[int, ...] = (1, 2, 5, 10, 50, 100)
    restarts: int = 5
    long: int = 100
    long_step: float = 0.25

    def __post_init__(self) -> None:
        check_steps("convergence", "steps", self.steps)
        at_least("convergence", "restarts", self.restarts, 1)
        at_least("convergence", "long", self.long, 1)
        if not 0 < self.long_step <= 2:
            raise UsageError(f"long_step={self.long_step:g} is no step in multiples of eps: use 0.25, or up to 2")


@dataclass(frozen=True)
class PgdSteps(Analysis):
    """Robust accuracy against the number of PGD steps: where it levels off.

    PGD with steps of 1.5 eps/n from a uniform start. An image counts as broken as soon as one step breaks it.
    """

    work: ClassVar[str] = "vitattack.analyses.strength.pgd_steps:pgd_steps"
    paper: ClassVar[str] = "Debenedetti et al. 2023, Table X"
    threat: ClassVar[str | None] = "linf:8/255"

    steps: tuple[int, ...] = (5, 10, 50, 100)

    def __post_init__(self) -> None:
        check_steps("pgd-steps", "steps", self.steps)


def check_steps(analysis: str, name: str, steps: tuple[int, ...]) -> None:
    """Refuse numbers of steps that are none, or named twice."""
    if not steps or min(steps) < 1:
        raise UsageError(f"{name} of {analysis} are numbers from 1 on: write {name}=1,2,5,10")
    if len(set(steps)) < len(steps):
        raise UsageError(f"a number of steps is named twice: name each once, as in {name}=1,2,5,10")


@dataclass(frozen=True)
class PatchCertificate(Analysis):
    """Accuracy under patches, attacked and certified: of the model, and of double masking around it (PatchCleanser).

    Double masking classifies an image under `across` x `across` masks that cover every place of the patch. Where the model gives
    the true class under every pair of masks, no patch of that size can change the class: a bound that no attack may cross.
    """

    work: ClassVar[str] = "vitattack.analyses.strength.patch_certificate:patch_certificate"
    paper: ClassVar[str] = "PatchCleanser (Xiang et al., USENIX Security 2022)"
    threat: ClassVar[str | None] = "patch:5px"
    images: ClassVar[int | None] = 32

    attack: str = "patch_pgd(place=random(4), steps=20)"
    across: int = 4

    def __post_init__(self) -> None:
        if not self.attack:
            raise UsageError("attack= names no attack: write attack=patch_pgd")
        at_least("patch-certificate", "across", self.across, 1)
