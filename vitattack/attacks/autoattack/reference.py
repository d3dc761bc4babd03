"""The AutoAttack package itself, stage by stage, behind our fence: what our own `autoattack` is compared with."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vitattack.attacks.autoattack.autoattack import VERSIONS
from vitattack.attacks.autoattack.flags import Flag
from vitattack.attacks.base import Calibration, Crafted, InBall, Traits, blank_evidence
from vitattack.attacks.catalogue import catalogued
from vitattack.attacks.foreign.sandbox import fenced, judged, quiet
from vitattack.attacks.losses import AnyLoss
from vitattack.core.errors import UsageError
from vitattack.core.registry import did_you_mean
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.threats.lp import LpBall

Version = Literal["standard", "plus", "rand"]

STAGES = {version: tuple(name.replace("_", "-") for name in names) for version, names in VERSIONS.items()}
# The part of the package that runs each stage, and what is set on it.
PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "apgd-ce": ("apgd", {"loss": "ce"}),
    "apgd-dlr": ("apgd", {"loss": "dlr"}),
    "apgd-t": ("apgd_targeted", {}),
    "fab": ("fab", {"targeted": False}),
    "fab-t": ("fab", {"targeted": True, "n_restarts": 1}),
    "square": ("square", {}),
}
LEAST_CLASSES = {"apgd-dlr": 3, "apgd-t": 4}
PAPER_STEPS, PAPER_QUERIES = 100, 5000
NORMS = {"linf": "Linf", "l2": "L2"}


@cache
def package() -> str:
    """The official package where it is installed, else its copy on the package index."""
    name = next(filter(_is_package, ("autoattack", "pyautoattack")), None)
    if name is None:
        raise UsageError("autoattack_ref runs the AutoAttack package, which is missing: pip install pyautoattack")
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UsageError(f"the package {name} needs {error.name}: pip install {error.name}") from None
    return name


def _is_package(name: str) -> bool:
    """Not merely a script of that name in the folder one happens to be in."""
    try:
        found = importlib.util.find_spec(name)
    except ValueError:  # something that was put there by hand
        return False
    return found is not None and found.submodule_search_locations is not None


@dataclass(frozen=True)
class Reference(InBall):
    """Runs the stages as the package does: each from the clean image, on the samples still standing, with one seed.

    A sample that no stage fools comes back unchanged. Evidence: `stage` says who broke the sample, `flags` what the
    package's checks found in the batch.
    """

    ball: LpBall
    version: Version
    stages: tuple[str, ...]
    steps: int
    queries: int

    def __post_init__(self) -> None:
        for stage in self.stages:
            if stage not in PARTS:
                raise UsageError(did_you_mean("stage of autoattack_ref", stage, PARTS))
        if not self.stages:
            raise UsageError("autoattack_ref has no stage: leave stages out, or name some of " + ", ".join(PARTS))
        if self.steps < 1 or self.queries < 1:
            raise UsageError("autoattack_ref needs at least 1 step and 1 query")

    @property
    def traits(self) -> Traits:
        return Traits(near_boundary=True)

    def stage_names(self, text: str) -> tuple[str, ...]:
        return self.stages

    def prepare(self, victim: Attackable, calibration: Calibration, *, rng: SampleRng) -> Reference:
        package()
        return self

    def with_loss(self, loss: AnyLoss) -> Reference:
        raise UsageError("the stages of autoattack_ref have losses of their own: use pgd for another loss")

    def doubts(self) -> tuple[str, ...]:
        found = []
        missing = [stage for stage in STAGES[self.version] if stage not in self.stages]
        if missing:
            found.append(f"AutoAttack {self.version} is more than was run: {', '.join(missing)} left out")
        if self.steps < PAPER_STEPS or self.queries < PAPER_QUERIES:
            found.append(
                f"AutoAttack makes {PAPER_STEPS} steps and {PAPER_QUERIES} queries, "
                f"not {self.steps} and {self.queries}: it is stronger than this"
            )
        return tuple(found)

    @torch.no_grad()  # as in the package, whose parts ask for gradients where they want some
    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        evidence = blank_evidence(x)
        evidence["stage"] = torch.full_like(evidence["first_fooled"], -1)
        evidence["flags"] = torch.zeros_like(evidence["first_fooled"])
        result = x.clone()
        if len(x) == 0:
            return Crafted(result, evidence)
        classes = self._check(victim, x, y, rng, evidence)
        fitting = [stage for stage in self.stages if classes >= LEAST_CLASSES.get(stage, 2)]
        if not fitting:
            raise UsageError(
                f"{' and '.join(self.stages)} need at least {min(LEAST_CLASSES.get(s, 2) for s in self.stages)} classes, "
                f"the model has {classes}: use apgd-ce, fab-t or square"
            )
        if len(fitting) < len(self.stages):
            evidence["flags"] |= Flag.LEFT_OUT
        active = torch.arange(len(x), device=x.device)
        for number, stage in enumerate(self.stages):
            if stage not in fitting or len(active) == 0:
                continue
            x_adv, fooled = self._stage(stage, classes, victim, x[active], y[active], rng, active, evidence)
            gone = active[fooled]
            result[gone] = x_adv[fooled]
            evidence["fooled"][gone] = True
            evidence["stage"][gone] = number
            active = active[~fooled]
        return Crafted(result, evidence)

    def _check(self, victim: Attackable, x: Tensor, y: Tensor, rng: SampleRng, evidence: dict[str, Tensor]) -> int:
        """The package's checks of the model, as flags over the batch; returns the number of classes."""
        found = Flag(0)
        with fenced("autoattack_ref", victim, x, rng) as inside:
            checks = importlib.import_module(f"{package()}.checks")
            single = x.float()
            if self.version != "rand":
                with quiet() as said:
                    checks.check_randomized(inside.model, single, y, bs=len(x))
                found |= Flag.RANDOM if said else Flag(0)
            with quiet() as said:
                classes = int(checks.check_range_output(inside.model, single))
            found |= Flag.PROBABILITIES if said else Flag(0)
            # this one counts calls by a trace of its own, in a table that it never clears
            checks.funcs.update(dict.fromkeys(checks.funcs, 0))
            trace = sys.gettrace()
            try:
                with quiet() as said, torch.enable_grad():
                    checks.check_dynamic(inside.model, single)
            finally:
                sys.settrace(trace)
            found |= Flag.DYNAMIC if said else Flag(0)
        for name, rows in inside.shares(x).items():
            evidence[name] += rows
        evidence["flags"] |= int(found)
        return classes

    def _stage(
        self,
        stage: str,
        classes: int,
        victim: Attackable,
        x: Tensor,
        y: Tensor,
        rng: SampleRng,
        active: Tensor,
        evidence: dict[str, Tensor],
    ) -> tuple[Tensor, Tensor]:
        """One stage on the samples still standing: its candidates, and which of them fool the plain victim."""
        with fenced(f"stage {stage} of autoattack_ref", victim, x, rng) as inside:
            part = self.part(stage, classes, inside.model, inside.seed, x.device)
            found = part.perturb(x.float(), y.clone())
        for name, rows in inside.shares(x).items():
            evidence[name][active] += rows
        seen = judged(victim, self.ball, x, y, found)
        evidence["forwards"][active] += victim.look
        if any("zero gradient" in said for said in inside.said):
            evidence["flags"][active] |= Flag.ZERO_GRADIENT
        return seen.x_adv, seen.fooled

    def whole(self, model: nn.Module, seed: int, device: torch.device) -> Any:
        """The package's AutoAttack, set to the version and the budget."""
        settings = {"norm": NORMS[self.ball.norm], "eps": self.ball.eps, "seed": seed, "version": self.version}
        if package() == "autoattack":
            settings["verbose"] = False
        return importlib.import_module(package()).AutoAttack(model, device=device, **settings)

    def part(self, stage: str, classes: int, model: nn.Module, seed: int, device: torch.device) -> Any:
        """The package's attack of one stage, with the settings of the version."""
        attribute, values = PARTS[stage]
        part = getattr(self.whole(model, seed, device), attribute)
        part.logger = None  # its checks then warn, and warnings are collected
        part.seed = seed
        part.n_target_classes = min(getattr(part, "n_target_classes", 9), classes - 1)
        for key, value in values.items():
            setattr(part, key, value)
        if stage == "square":
            part.n_queries = self.queries
        elif attribute == "fab":
            part.n_iter = self.steps
        elif self.steps != PAPER_STEPS:
            part.n_iter = part.n_iter_orig = self.steps
            # the checkpoints of APGD's paper
            for key, portion in (("n_iter_2", 0.22), ("n_iter_min", 0.06), ("size_decr", 0.03)):
                setattr(part, key, max(int(portion * self.steps), 1))
        return part


@catalogued(
    paper="Croce & Hein, ICML 2020, the authors' code",
    quick="autoattack_ref(stages=('apgd-ce',), steps=10)",
    foreign=True,
)
def autoattack_ref(
    ball: LpBall,
    *,
    version: Version = "standard",
    stages: tuple[str, ...] | None = None,
    steps: int = PAPER_STEPS,
    queries: int = PAPER_QUERIES,
) -> Reference:
    """AutoAttack as the package `autoattack` or `pyautoattack` runs it, judged by us; `autoattack` is our own and faster.

    standard is apgd-ce, apgd-t, fab-t, square; plus adds apgd-dlr, fab and restarts; rand averages over the model's noise.
    `stages` runs some of them, with the settings of the version. All rows of a batch share a seed, so results depend on
    the batch size. Fewer than 10 classes: all other classes are targets; fewer than 4: without the stages that need DLR.
    """
    return Reference(ball, version, STAGES[version] if stages is None else stages, steps, queries)
