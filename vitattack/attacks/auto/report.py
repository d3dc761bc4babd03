"""Report of a run of `auto`: successes and passes per stage, the outcome of the assurance, and doubts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, comb
from typing import Any

from vitattack.attacks.auto.composition import TIE_CLASSES, TIE_STEPS, TIED
from vitattack.attacks.auto.numbering import (
    ALL,
    BLACK_BOX,
    BLIND,
    DETOUR,
    MOST,
    NAMES,
    PROBE,
    QUERIES,
    SELDOM,
    TIES,
)
from vitattack.attacks.base import BLIND_SHARE, NEAREST
from vitattack.attacks.gradient.fidelity import TRUSTED
from vitattack.core.percent import at_most
from vitattack.core.table import Table
from vitattack.records.record import SampleRecord
from vitattack.records.report_section import Run, Section
from vitattack.records.result import label

FRAGILE = 0.02  # of the survivors; the assurance says how likely its draw meets none of them, if so many are fragile
MISSED_IN_L1 = "10 of 167 images"  # measured: docs/auto.md
# Passes at which survivors are counted; among them one short ascent, the price of PMA, AttackBench's cap, and AutoAttack's.
LADDER = (20, 100, 200, 403, 1000, 2000, 5000, 10000)


@dataclass(frozen=True)
class StageYield:
    """Samples that a stage was tried on, samples it broke, and its passes in total."""

    stage: str
    tried: int
    broke: int
    passes: int


@dataclass(frozen=True)
class AssuranceOutcome:
    """Outcome of the assurance: `fell` of `probed` samples among `survivors`; AutoAttack `broke` more if it escalated.

    The `nearest` of the probed samples were those with the best margins, the others were drawn. Where gradients cannot be
    trusted, square took the place of the probe: it was `asked` of some survivors and broke `beyond` of them.
    """

    survivors: int
    probed: int
    nearest: int
    fell: int
    escalated: bool
    broke: int
    asked: int = 0
    beyond: int = 0

    @property
    def bound(self) -> float | None:
        """Upper bound at 95 % confidence on the fragile share of survivors after a probe without success (hypergeometric).

        The nearest are known not to be fragile; the bound for the others rests on those drawn among them.
        """
        if not self.probed or self.fell:
            return None
        return most_fragile(self.survivors - self.nearest, self.probed - self.nearest) / self.survivors

    @property
    def blindness(self) -> float | None:
        """Chance that no fragile survivor was probed, if the share FRAGILE of all survivors were and none of the nearest."""
        if not self.probed or self.fell:
            return None
        others = self.survivors - self.nearest
        robust = max(0, others - ceil(FRAGILE * self.survivors))
        return comb(robust, self.probed - self.nearest) / comb(others, self.probed - self.nearest)

    @property
    def note(self) -> str:
        probe = " + ".join(PROBE)
        if self.escalated:
            reason = "gradients vanish on survivors"
            if self.fell:
                reason = f"{self.fell} of {self.probed} probed survivors fell"
            elif self.beyond:
                reason = f"square broke {self.beyond} of {self.asked} samples that gradients had left"
            return f"assurance: {reason}: AutoAttack ran on all {self.survivors} and broke {self.broke} more"
        if self.fell:
            return f"assurance: all {self.survivors} survivors were probed, and all of them fell"
        if self.asked and not self.probed:
            return (
                f"assurance: gradients cannot be trusted, so {BLACK_BOX}({QUERIES}) was asked instead of a probe: it broke "
                f"{self.beyond} of the {self.asked} survivors nearest to the boundary; it says nothing about stronger attacks"
            )
        if not self.probed:
            return "assurance: no survivor was probed"
        return (
            f"assurance: 0 of {self.probed} probed survivors fell to {probe} (the {self.nearest} nearest to the "
            f"boundary, {self.probed - self.nearest} drawn); with 95 % confidence at most "
            f"{at_most(self.bound or 0.0)}% of the {self.survivors} survivors would fall to the same probe (hypergeometric); "
            f"if {FRAGILE:.0%} of them would, none of these was among the drawn with probability {self.blindness or 0.0:.2f}; "
            "it says nothing about stronger attacks"
        )

    def json(self) -> dict[str, Any]:
        return {**self.__dict__, "bound": self.bound, "blindness": self.blindness, "probe": list(PROBE)}


@dataclass(frozen=True)
class AutoReport:
    """Figures of a run, computed from records alone."""

    bought: tuple[StageYield, ...]
    standing: tuple[tuple[int, int], ...]  # passes per sample, and survivors after them
    last: int  # passes after which the last sample fell
    assured: AssuranceOutcome | None
    agreement: float | None  # between gradients in bfloat16 and float32, in the worst block
    fidelity: float | None  # of gradients, in the worst block

    def json(self) -> dict[str, Any]:
        return {
            "bought": [stage.__dict__ for stage in self.bought],
            "standing": [{"passes": passes, "correct": correct} for passes, correct in self.standing],
            "last_fall": self.last,
            "assurance": self.assured.json() if self.assured else None,
            "bf16_agreement": self.agreement,
            "gradient_fidelity": self.fidelity,
        }

    @property
    def notes(self) -> Iterator[str]:
        if self.last:
            steps = ", ".join(f"{correct} after {passes:,}" for passes, correct in self.standing)
            before = f"survivors by passes spent: {steps}; " if steps else ""
            yield f"{before}the last one fell after {self.last:,} passes"
        if self.agreement is not None:
            yield f"bf16 search: gradient signs agree with fp32 on {self.agreement:.1%} of the pixels in the worst block"
        for tied in (stage for stage in self.bought if stage.stage == TIES):
            yield (
                f"near ties, within {TIED:.0%} of the median survivor's distance from the boundary: {tied.tried}, of which "
                f"{TIE_STEPS} steps towards each of {TIE_CLASSES} classes broke {tied.broke}"
                + ("" if tied.broke == tied.tried else "; other noise may break some of those left")
            )
        if self.assured:
            yield self.assured.note


def ran(stage: str, records: Sequence[SampleRecord]) -> bool:
    """Whether a stage ran on any sample."""
    return any(f"spent {stage}" in r.evidence for r in records)


def ran_blind(records: Sequence[SampleRecord]) -> bool:
    """Whether the model had no gradient and no way around, so that only its logits were used."""
    return any(ran(stage, records) for stage in BLIND)


def most_fragile(population: int, probed: int) -> int:
    """Upper bound at 95 % confidence on the fragile samples in a population, none of those probed being fragile."""
    # In integers, since scipy.stats.hypergeom rounds and misses bounds at exactly 5 %, such as 19 probed of 25.
    ways = comb(population, probed)
    fragile = 0
    while fragile < population - probed and 20 * comb(population - fragile - 1, probed) >= ways:
        fragile += 1
    return fragile


def report_sections(run: Run, *, budget: int | None, converges: bool) -> tuple[Section]:
    """The section of a run of `auto`: passes and successes per stage, and doubts with the next command to run."""
    report = auto_report(run.records, budget=budget)
    total = max(1, sum(stage.passes for stage in report.bought))
    rows = [(s.stage, str(s.tried), str(s.broke), f"{s.passes:,}", f"{s.passes / total:.0%}") for s in report.bought]
    title = f"{label(run.job.attack)} at {run.job.threat}: what each stage bought"
    table = Table(title, ("stage", "tried", "broke", "passes", "share"), rows)
    doubts = tuple(auto_doubts(run, report, budget=budget, converges=converges))
    return (Section("auto", report.json(), notes=tuple(report.notes), tables=(table,), doubts=doubts),)


def auto_report(records: Sequence[SampleRecord], *, budget: int | None = None) -> AutoReport:
    """Compute the report from the records of a run; `budget` is the passes per sample it was limited to."""
    attacked = [r for r in records if r.clean == r.label]
    fell = [(int(r.evidence["stage"]), r.forwards + r.backwards) for r in attacked if r.status == "fooled"]
    broke = [number for number, _ in fell]
    bought = []
    for name in (*NAMES, *SELDOM):
        number = ALL.index(name)
        spent = [int(r.evidence.get(f"spent {name}", 0)) for r in attacked]
        if any(spent):
            bought.append(StageYield(name, sum(map(bool, spent)), broke.count(number), sum(spent)))
    probed = [int(r.evidence["spent probe"]) for r in attacked if "spent probe" in r.evidence]
    full = [int(r.evidence["spent full"]) for r in attacked if "spent full" in r.evidence]
    # by the pass that met them, not by stage: a random model errs on some before the judge that no stage had claimed
    late = [
        r.evidence
        for r in attacked
        if r.status == "fooled" and ("spent probe" in r.evidence or "spent full" in r.evidence)
    ]
    assured = None
    survivors = sum(r.status == "robust" for r in attacked) + len(late)
    if survivors and budget is None and not any(r.evidence.get("no_gradient") for r in attacked):
        by_probe = sum("spent full" not in evidence for evidence in late)
        nearest = sum(bool(r.evidence.get(NEAREST)) for r in attacked)
        asked = sum(bool(r.evidence.get(f"spent {BLACK_BOX}")) for r in attacked)
        beyond = broke.count(ALL.index(BLACK_BOX))
        assured = AssuranceOutcome(
            survivors, len(probed), nearest, by_probe, bool(full), len(late) - by_probe, asked, beyond
        )
        bought += [
            StageYield(name, len(spent), count, sum(spent))
            for name, spent, count in (("probe", probed, by_probe), ("full", full, assured.broke))
            if spent
        ]
    robust = sum(r.status == "robust" for r in attacked)
    most = max((r.forwards + r.backwards for r in attacked), default=0)
    standing = tuple((b, robust + sum(p > b for _, p in fell)) for b in LADDER if b < most)
    agreed, kept = (
        [float(r.evidence[name]) for r in attacked if name in r.evidence] for name in ("agreement", "fidelity")
    )
    last = max((p for _, p in fell), default=0)
    return AutoReport(tuple(bought), standing, last, assured, min(agreed, default=None), min(kept, default=None))


def _stage(record: SampleRecord) -> str:
    """The stage that broke a sample; none where a random model erred before the judge alone."""
    number = int(record.evidence["stage"])
    return ALL[number] if number >= 0 else ""


def auto_doubts(run: Run, report: AutoReport, *, budget: int | None, converges: bool) -> Iterator[str]:
    """Doubts about the result of a run of `auto`, each with the next command to run."""
    attacked = [r for r in run.records if r.clean == r.label]
    fooled = [(_stage(r), r) for r in attacked if r.status == "fooled"]
    left = [r for r in attacked if r.status == "robust"]

    next_run = run.job.next_run
    if ran_blind(attacked):
        yield (
            "auto ran without gradients, by noise and square alone, so the number is an upper bound; "
            f"{next_run('square(queries=20000)')}, or attack it through a model like it: vitattack transfer"
        )
        return
    if report.fidelity is not None and report.fidelity < TRUSTED:
        detours = sum(stage == DETOUR for stage, _ in fooled)
        yield (
            f"the model does not do what its gradients promise (agreement {report.fidelity:.2f} along short random steps, "
            f"{TRUSTED:g} and more where gradients can be trusted): they may be masked and the number an upper bound "
            f"({detours} samples fell to substitute gradients alone); {next_run('square(queries=20000)')}"
        )
    blind = sum(bool(r.evidence.get("zero_grad")) for r in left)
    if blind > BLIND_SHARE * len(left):
        yield (
            f"no stage had a gradient on {blind} of {len(left)} survivors: gradient attacks are blind here and the number "
            f"is an upper bound; {next_run('square(queries=20000)')}, or attack it through a model like it: vitattack transfer"
        )
    # where no loss has a gradient, cross-entropy needs no doubt of its own
    flat = sum(bool(r.evidence.get("ce_flat")) and not r.evidence.get("zero_grad") for r in attacked)
    if flat:
        yield (
            f"cross-entropy had a gradient of exactly zero on {flat} samples (its floor in float32): attacks that follow "
            f"it alone overrate this model; {run.job.next_diagnosis}"
        )
    by_square = sum("square" in stage for stage, _ in fooled)
    if by_square:
        yield (
            f"square, which uses logits alone, broke {by_square} samples that gradient attacks had left: gradients may be "
            "masked; "
            f"{next_run('square(queries=20000)')}"
        )
    elif report.assured and report.assured.escalated and report.assured.fell:
        yield (
            f"the probe broke survivors, so AutoAttack ran on all of them: stronger attacks may break more; "
            f"{next_run('restarts(5, autoattack)')}"
        )
    if any(r.evidence.get("saturated") for r in left):
        views = sum(stage == "view" for stage, _ in fooled)
        yield (
            f"the attention softmax saturates, which misleads gradients ({views} samples fell to the view with scaled scores "
            f"alone); {run.job.next_diagnosis}; {next_run('autoattack')}"
        )
    escalated = report.assured is not None and report.assured.escalated
    if left and run.job.threat.startswith("l1:") and not escalated:
        yield (
            f"in l1 auto is no substitute for AutoAttack, which broke {MISSED_IN_L1} that auto left where both ran; "
            f"{next_run('autoattack')}"
        )
    if budget is not None:
        late = sum(r.forwards + r.backwards > 0.75 * budget for _, r in fooled)
        yield "a budget leaves no room for the assurance: no survivor was probed; drop the budget for a probe"
        if late:
            yield f"{late} samples fell to the last quarter of the budget: next: a larger one, or --until converged"
    elif not converges and any(
        stage in NAMES and int(r.evidence.get("round", 0)) % (MOST + 1) == MOST for stage, r in fooled
    ):
        yield f"the last of {MOST} rounds still broke samples; {next_run('auto(until=converged)')}"
