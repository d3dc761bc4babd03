"""The AutoAttack package itself, sandboxed, stage by stage: the reference for our own `autoattack`."""

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
from vitattack.attacks.catalogue import LP_AND_L1, catalogued
from vitattack.attacks.foreign.sandbox import judge_candidates, quiet, sandboxed
from vitattack.attacks.losses.base import AnyLoss
from vitattack.core.errors import UsageError
from vitattack.core.registry import did_you_mean
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.threats.lp import LpBall

Version = Literal["standard", "plus", "rand"]

STAGES = {version: tuple(name.replace("_", "-") for name in names) for version, names in VERSIONS.items()}
# Attribute of the package's AutoAttack that runs each stage, and the values to set on it.
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
NORMS = {"linf": "Linf", "l2": "L2", "l1": "L1"}


@cache
def package() -> str:
    """Name of the official package if it is installed, else of its copy on PyPI."""
    name = next(filter(_is_package, ("autoattack", "pyautoattack")), None)
    if name is None:
        raise UsageError("autoattack_ref runs the AutoAttack package, which is missing: pip install pyautoattack")
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UsageError(f"the package {name} needs {error.name}: pip install {error.name}") from None
    return name


def _is_package(name: str) -> bool:
    """Whether the name is an installed package, not merely a script in the current folder."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # a module without a spec in sys.modules
        return False
    return spec is not None and spec.submodule_search_locations is not None


@dataclass(frozen=True)
class AutoAttackReference(InBall):
    """Runs the stages as the package does: each from the clean image, on the survivors, with one seed.

    A sample that no stage fools comes back unchanged. Evidence: `stage` is the number of the stage that broke the sample,
    `flags` are the findings of the package's checks on the batch.
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
            raise UsageError("autoattack_ref has no stage: omit stages, or name some of " + ", ".join(PARTS))
        if self.steps < 1 or self.queries < 1:
            raise UsageError("autoattack_ref needs at least 1 step and 1 query")

    @property
    def traits(self) -> Traits:
        return Traits(near_boundary=True)

    def stage_names(self, text: str) -> tuple[str, ...]:
        return self.stages

    def prepare(self, victim: Attackable, calibration: Calibration, *, rng: SampleRng) -> AutoAttackReference:
        package()
        return self

    def with_loss(self, loss: AnyLoss) -> AutoAttackReference:
        raise UsageError("the stages of autoattack_ref have losses of their own: use pgd(loss=...)")

    def doubts(self) -> tuple[str, ...]:
        doubts = []
        missing = [stage for stage in STAGES[self.version] if stage not in self.stages]
        if missing:
            doubts.append(f"AutoAttack {self.version} was run in part: {', '.join(missing)} left out")
        if self.steps < PAPER_STEPS or self.queries < PAPER_QUERIES:
            doubts.append(
                f"AutoAttack makes {PAPER_STEPS} steps and {PAPER_QUERIES} queries, "
                f"not {self.steps} and {self.queries}: it is stronger than this"
            )
        return tuple(doubts)

    @torch.no_grad()  # as in the package, whose parts enable gradients where they need them
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
            leaving = active[fooled]
            result[leaving] = x_adv[fooled]
            evidence["fooled"][leaving] = True
            evidence["stage"][leaving] = number
            active = active[~fooled]
        return Crafted(result, evidence)

    def _check(self, victim: Attackable, x: Tensor, y: Tensor, rng: SampleRng, evidence: dict[str, Tensor]) -> int:
        """Run the package's checks of the model, flag the batch and return the number of classes."""
        flags = Flag(0)
        with sandboxed("autoattack_ref", victim, x, rng) as call:
            checks = importlib.import_module(f"{package()}.checks")
            single = x.float()
            if self.version != "rand":
                with quiet() as messages:
                    checks.check_randomized(call.model, single, y, bs=len(x))
                flags |= Flag.RANDOM if messages else Flag(0)
            with quiet() as messages:
                classes = int(checks.check_range_output(call.model, single))
            flags |= Flag.PROBABILITIES if messages else Flag(0)
            # this check counts calls with sys.settrace, in a table that it never clears
            checks.funcs.update(dict.fromkeys(checks.funcs, 0))
            trace = sys.gettrace()
            try:
                with quiet() as messages, torch.enable_grad():
                    checks.check_dynamic(call.model, single)
            finally:
                sys.settrace(trace)
            flags |= Flag.DYNAMIC if messages else Flag(0)
        for name, rows in call.shares(x).items():
            evidence[name] += rows
        evidence["flags"] |= int(flags)
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
        """Run one stage on the survivors: its candidates, and which of them fool the plain victim."""
        with sandboxed(f"stage {stage} of autoattack_ref", victim, x, rng) as call:
            part = self.part(stage, classes, call.model, call.seed, x.device)
            candidates = part.perturb(x.float(), y.clone())
        for name, rows in call.shares(x).items():
            evidence[name][active] += rows
        judged = judge_candidates(victim, self.ball, x, y, candidates)
        evidence["forwards"][active] += victim.look
        if any("zero gradient" in warning for warning in call.warnings):
            evidence["flags"][active] |= Flag.ZERO_GRADIENT
        return judged.x_adv, judged.fooled

    def whole(self, model: nn.Module, seed: int, device: torch.device) -> Any:
        """Instantiate the package's AutoAttack for the version and the budget."""
        settings = {"norm": NORMS[self.ball.norm], "eps": self.ball.eps, "seed": seed, "version": self.version}
        if package() == "autoattack":
            settings["verbose"] = False
        return importlib.import_module(package()).AutoAttack(model, device=device, **settings)

    def part(self, stage: str, classes: int, model: nn.Module, seed: int, device: torch.device) -> Any:
        """The package's attack for one stage, with the settings of the version."""
        attribute, values = PARTS[stage]
        part = getattr(self.whole(model, seed, device), attribute)
        part.logger = None  # without a logger its checks warn, and warnings are collected
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
            # checkpoints as in the paper
            for key, portion in (("n_iter_2", 0.22), ("n_iter_min", 0.06), ("size_decr", 0.03)):
                setattr(part, key, max(int(portion * self.steps), 1))
        return part


@catalogued(
    paper="Croce & Hein, ICML 2020, the authors' code",
    quick="autoattack_ref(stages=('apgd-ce',), steps=10)",
    threats=LP_AND_L1,
    foreign=True,
)
def autoattack_ref(
    ball: LpBall,
    *,
    version: Version = "standard",
    stages: tuple[str, ...] | None = None,
    steps: int = PAPER_STEPS,
    queries: int = PAPER_QUERIES,
) -> AutoAttackReference:
    """AutoAttack as run by the package `autoattack` or `pyautoattack`, judged by us; our own `autoattack` is faster.

    standard is apgd-ce, apgd-t, fab-t, square; plus adds apgd-dlr, fab and restarts; rand averages over the model's noise.
    `stages` runs some of them, with the settings of the version. All rows of a batch share a seed, so results depend on
    the batch size. With fewer than 10 classes all others are targets; with fewer than 4, stages that need DLR are left out.
    """
    return AutoAttackReference(ball, version, STAGES[version] if stages is None else stages, steps, queries)
