"""Perceptual distances of the candidates of an attack, as evidence."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from vitattack.attacks.base import Assurance, Attack, Crafted, Wrapper
from vitattack.attacks.catalogue import catalogued
from vitattack.attacks.perceptual.distances import lpips_missing, measures
from vitattack.attacks.perceptual.report import appearance_section
from vitattack.attacks.price import Price, PriceQuery
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.records.report_section import Run, Section
from vitattack.records.result import label


@dataclass(frozen=True)
class PerceptualAttack(Wrapper):
    """Adds l2, linf, SSIM and LPIPS of every candidate to the evidence; candidates and verdicts do not change."""

    inner: Attack
    lpips: bool = True

    def __post_init__(self) -> None:
        missing = lpips_missing() if self.lpips else None  # cached, since a failing download may be slow
        if missing:
            raise UsageError(missing)

    def doubts(self) -> tuple[str, ...]:
        missing = None if self.lpips else lpips_missing()
        return (*self.inner.doubts(), *([missing] if missing else []))

    @property
    def assurance(self) -> Assurance | None:
        offered = self.inner.assurance
        if offered is None:
            return None
        return replace(offered, probe=replace(self, inner=offered.probe), full=replace(self, inner=offered.full))

    def stage_names(self, text: str) -> tuple[str, ...]:
        return self.inner.stage_names(label(text))

    def report(self, run: Run) -> tuple[Section, ...]:
        """Sections of the inner attack and the perceptual distances; counts of stages come last, as everywhere."""
        sections = self.inner.report(run._replace(job=replace(run.job, attack=label(run.job.attack))))
        last = tuple(section for section in sections if section.name == "stages")
        return (*sections[: len(sections) - len(last)], *appearance_section(run), *last)

    def price(self, query: PriceQuery) -> Price:
        return self.inner.price(query)

    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        crafted = self.inner(victim, x, y, rng=rng)
        if len(x) == 0:
            return crafted
        return Crafted(crafted.x_adv, {**crafted.evidence, **measures(x, crafted.x_adv, lpips=self.lpips)})


@catalogued(paper="Zhang et al., CVPR 2018", quick="perceptual(pgd(steps=3), lpips=False)", threats=None)
def perceptual(inner: Attack, *, lpips: bool = True) -> PerceptualAttack:
    """The inner attack with l2, linf, SSIM and LPIPS of every candidate in its records, as added by --perceptual."""
    return PerceptualAttack(inner, lpips)
