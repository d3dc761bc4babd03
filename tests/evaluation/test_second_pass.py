"""The assurance: probed samples, escalation, report, and independence of where a run was interrupted."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from vitattack import evaluate
from vitattack.attacks import attack_text
from vitattack.attacks.auto.attack import Auto
from vitattack.attacks.auto.numbering import ALL, BLACK_BOX, MOST, NAMES
from vitattack.attacks.auto.report import AssuranceOutcome, auto_report, most_fragile
from vitattack.attacks.autoattack.autoattack import autoattack
from vitattack.attacks.base import BEYOND, BLIND_SHARE, ROUGH, UNTRUSTED, Assurance
from vitattack.evaluation.listener import EvaluationListener
from vitattack.evaluation.second_pass import ESCALATED, PROBED, LaterPass, chosen, merged_record, next_pass
from vitattack.records.job import Job
from vitattack.records.record import RecordListener, SampleRecord
from vitattack.records.report_section import Run
from vitattack.records.result import Result
from vitattack.threats.lp import LpBall

QUICK = "auto(k=9, steps=5, long=10)"
SETTINGS = {"threat": "linf:0.1", "threads": 1, "batch_size": 16, "certificate": False}


class Masked(nn.Module):
    """Gradients point away from the boundary while logits are honest, so that only black-box attacks succeed."""

    def forward(self, x: Tensor) -> Tensor:
        true = x.flatten(1).mean(1, keepdim=True)
        level = true.detach() - 1e-3 * (true - true.detach())
        return torch.cat([10 * level, 0.0 * level + 4.8] + [0.0 * level] * 8, 1)


class Far(nn.Module):
    """A model that nothing fools."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([5 + x.flatten(1).mean(1, keepdim=True), *[0.01 * x[:, :1, 0, 0]] * 9], 1)


class Blind(nn.Module):
    """A model computed out of sight of autograd, with a gradient of zero and no way around."""

    def forward(self, x: Tensor) -> Tensor:
        seen = (x.detach() * 16).round() / 16
        return torch.cat([10 * seen.flatten(1).mean(1, keepdim=True), torch.full((len(x), 9), 4.8)], 1) + 0 * x.sum()


@pytest.fixture(autouse=True)
def short_autoattack(monkeypatch: pytest.MonkeyPatch) -> None:
    """The escalation with fewer steps and queries."""
    monkeypatch.setattr(
        "vitattack.attacks.auto.assurance.autoattack", lambda ball: autoattack(ball, steps=3, queries=300)
    )


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients are believed whatever they do, as where a short look misses that they lie."""
    monkeypatch.setattr("vitattack.attacks.auto.block.TRUSTED", -1.0)


def images(n: int) -> tuple[Tensor, Tensor]:
    x = torch.rand(n, 3, 4, 4, generator=torch.Generator().manual_seed(1)) * 0.04 + 0.5
    return x, torch.zeros(n, dtype=torch.long)


def record(
    index: int, status: str = "robust", *, spent: int = 400, number: int = 1, blind: bool = False
) -> SampleRecord:
    found = SampleRecord(index, 0, 0, 0, "robust", 0.0, False, False, -1, spent, 0, {"zero_grad": blind}, number)
    return replace(found, status=status)  # type: ignore[arg-type]


JOB = Job("m", "auto", "linf:0.1", "d", "w", "p")


def test_the_probe_costs_at_most_its_share_and_hangs_on_seed_and_row_alone() -> None:
    attack = attack_text.build("auto", LpBall("linf", 0.1))
    assert isinstance(attack, Auto) and attack.assurance is not None
    records = [record(n) for n in range(200)]
    found = next_pass(attack, JOB, records, 1)
    assert found is not None and found.number == PROBED
    price, share = attack.assurance.price, attack.assurance.share
    assert len(found.rows) * price <= share * 200 * 400 < (len(found.rows) + 1) * price
    assert list(found.rows) == sorted(set(found.rows))
    assert next_pass(attack, JOB, records, 1) == found
    other = next_pass(attack, replace(JOB, seed=1), records, 1)
    assert other is not None and other.rows != found.rows
    # who is first among the survivors does not hang on who else survived
    few = chosen(range(0, 200, 2), 0, 100)
    assert set(chosen(range(0, 200, 2), 0, 10)) <= set(few) and len(few) == 100


def test_a_hit_sends_every_survivor_to_autoattack_and_no_hit_ends_it() -> None:
    attack = attack_text.build("auto", LpBall("linf", 0.1))
    records = [record(n) for n in range(50)] + [record(50, "fooled"), record(51, "clean_wrong")]
    probed = [replace(r, pass_number=PROBED) if r.index < 5 else r for r in records]
    assert next_pass(attack, JOB, probed, PROBED) is None
    probed[3] = replace(probed[3], status="fooled")
    found = next_pass(attack, JOB, probed, PROBED)
    assert found is not None and found.number == ESCALATED and found.rows == (0, 1, 2, *range(4, 50))
    assert next_pass(attack, JOB, probed, ESCALATED) is None


def test_where_gradients_are_not_trusted_square_has_taken_the_place_of_the_probe() -> None:
    attack = attack_text.build(QUICK, LpBall("linf", 0.1))
    untrusted = [replace(record(i), evidence={UNTRUSTED: True}) for i in range(8)]
    assert next_pass(attack, JOB, untrusted, 1) is None
    some = [*untrusted[:4], *(record(i) for i in range(4, 8))]
    probe = next_pass(attack, JOB, some, 1)
    assert probe is not None and probe.number == PROBED  # the other blocks have nothing else
    hit = [replace(each, evidence={UNTRUSTED: True, BEYOND: True}) for each in untrusted]
    again = next_pass(attack, JOB, hit, 1)
    assert again is not None and (again.number, len(again.rows)) == (ESCALATED, 8)


def test_blind_gradients_need_no_probe_and_a_budget_or_no_survivor_gets_none() -> None:
    attack = attack_text.build("auto", LpBall("linf", 0.1))
    blind = [record(n, blind=n < 20 * BLIND_SHARE + 1) for n in range(20)]
    found = next_pass(attack, JOB, blind, 1)
    assert found is not None and found.number == ESCALATED and len(found.rows) == 20
    assert next_pass(attack, JOB, [record(0, "fooled")], 1) is None
    assert (
        next_pass(attack_text.build("auto(passes=403)", LpBall("linf", 0.1)), JOB, [record(n) for n in range(90)], 1)
        is None
    )
    assert next_pass(attack_text.build("pgd", LpBall("linf", 0.1)), JOB, [record(n) for n in range(90)], 1) is None


def test_half_of_the_probed_are_the_nearest_and_few_passes_pay_for_two() -> None:
    attack = attack_text.build("auto", LpBall("linf", 0.1))
    near = {7: 0.5, 30: 0.9, 101: 0.1, 180: 0.2}
    records = [replace(record(n), evidence={"margin": near.get(n, 0.0) - 1}) for n in range(200)]
    found = next_pass(attack, JOB, [replace(r, forwards=110) for r in records], 1)
    assert found is not None and (len(found.rows), found.nearest) == (4, {7, 30})
    few = next_pass(attack, JOB, [replace(r, forwards=10) for r in records], 1)
    assert few is not None and (len(few.rows), few.nearest) == (2, {30})
    alone = next_pass(attack, JOB, records[:1], 1)
    assert alone is not None and alone.rows == (0,)


def test_where_rounds_broke_samples_an_eighth_of_the_survivors_is_probed_beside_the_drawn() -> None:
    attack = attack_text.build("auto", LpBall("linf", 0.1))
    records = [replace(record(n, spent=110), evidence={"margin": float(n), ROUGH: n >= 100}) for n in range(200)]
    found = next_pass(attack, JOB, records, 1)
    assert found is not None and found.nearest == set(range(175, 200)) and len(found.rows) == 27
    dear = [replace(each, forwards=4000) for each in records]
    found = next_pass(attack, JOB, dear, 1)
    assert found is not None and len(found.nearest) > 25  # what the passes pay for, where that is more


def test_the_bound_rests_on_those_that_were_drawn() -> None:
    outcome = AssuranceOutcome(survivors=100, probed=30, nearest=10, fell=0, escalated=False, broke=0)
    assert outcome.bound == most_fragile(90, 20) / 100 > most_fragile(100, 30) / 100
    assert "(the 10 nearest to the boundary, 20 drawn)" in outcome.note


@pytest.mark.parametrize(("survivors", "probed", "nearest"), [(1, 1, 0), (9, 4, 2), (60, 4, 2), (60, 60, 30)])
def test_the_chance_to_meet_no_fragile_one_is_counted_over_all_draws(survivors: int, probed: int, nearest: int) -> None:
    outcome = AssuranceOutcome(survivors, probed, nearest, fell=0, escalated=False, broke=0)
    fragile = 1 if survivors < 50 else 2  # 2 % of them, rounded up, none of them among the nearest
    draws = itertools.combinations(range(survivors - nearest), probed - nearest)
    missed = [min(draw, default=survivors) >= fragile for draw in draws]
    assert outcome.blindness == pytest.approx(sum(missed) / len(missed))
    assert replace(outcome, fell=1).blindness is None is replace(outcome, probed=0).blindness


@pytest.mark.parametrize(("population", "probed"), list(itertools.product([1, 5, 12], [1, 2, 5])))
def test_the_bound_is_the_exact_hypergeometric_one(population: int, probed: int) -> None:
    """The bound, counted over all samples that could have been drawn."""
    if probed > population:
        return
    draws = list(itertools.combinations(range(population), probed))

    def missed(fragile: int) -> float:
        return sum(min(draw) >= fragile for draw in draws) / len(draws)

    assert most_fragile(population, probed) == max(k for k in range(population + 1) if missed(k) >= 0.05)


def run(model: nn.Module, n: int, attack: str = QUICK, **more: object) -> Result:
    return evaluate(model, attack, data=images(n), **{**SETTINGS, **more}).results[0]  # type: ignore[arg-type]


def test_where_gradients_lie_square_is_asked_of_the_nearest_and_then_of_all() -> None:
    found = run(Masked(), 24)
    assert found.robust.correct == 0
    by_square = [r.evidence["round"] for r in found.records if r.evidence["stage"] == ALL.index(BLACK_BOX)]
    assert by_square.count(0) == 6 and by_square.count(1) >= 1  # a quarter, then the rest
    assert {r.pass_number for r in found.records} <= {1, ESCALATED}
    assert any("not do what its gradients promise" in doubt for doubt in found.doubts)
    assert any("square, which uses logits alone" in doubt for doubt in found.doubts)


@pytest.mark.usefixtures("trusting")
def test_masked_gradients_are_found_out_and_everybody_meets_autoattack() -> None:
    found = run(Masked(), 24)
    told = auto_report(found.records)
    assert told.assured is not None
    assert told.assured.escalated and told.assured.fell > 0 and told.assured.broke > 0
    assert found.robust.correct == 0
    assert {r.pass_number for r in found.records} == {PROBED, ESCALATED}
    assert any(
        "square, which uses logits alone" in doubt and "next: vitattack.evaluate(model" in doubt
        for doubt in found.doubts
    )
    assert sum(r.forwards + r.backwards for r in found.records) > sum(s.passes for s in told.bought)


@pytest.mark.usefixtures("trusting")
def test_a_gradient_of_zero_is_called_blind_and_escalated() -> None:
    found = run(Blind(), 16)
    told = auto_report(found.records)
    assert told.assured is not None
    assert told.assured.escalated and told.assured.probed == 0 and found.robust.correct == 0
    assert any(r.evidence["zero_grad"] for r in found.records)


def test_no_hit_is_reported_for_what_it_is() -> None:
    found = run(Far(), 64, "auto(steps=4, k=9, long=100)")
    told = auto_report(found.records)
    assert told.assured is not None and told.assured.probed >= 2
    assured = told.assured
    assert (assured.survivors, assured.fell, assured.escalated) == (64, 0, False)
    assert f"0 of {assured.probed} probed survivors fell" in assured.note and "nothing about stronger" in assured.note
    assert assured.nearest == assured.probed // 2
    assert assured.bound == most_fragile(64 - assured.nearest, assured.probed - assured.nearest) / 64
    first = [stage for stage in told.bought if stage.stage in NAMES]
    share = Assurance.share
    assert sum(s.passes for s in told.bought if s.stage == "probe") <= share * 1.05 * sum(s.passes for s in first)


@pytest.mark.usefixtures("trusting")
def test_a_run_stopped_anywhere_ends_in_the_same_file(tmp_path: Path) -> None:
    """Runs cut at the end of the first pass, inside batches of the second and third, and between them."""
    whole = run(Masked(), 40, out=tmp_path / "whole")
    assert whole.folder is not None
    content = (whole.folder / "samples.jsonl").read_bytes()
    lines = content.splitlines(keepends=True)
    assert len(lines) > 40
    for number, end in enumerate([40, 41, len(lines) - 20, len(lines) - 1, len(lines)]):
        folder = tmp_path / str(number) / whole.folder.name
        folder.mkdir(parents=True)
        torn = b"".join(lines[:end]) + (lines[end][:30] if end < len(lines) else b"")
        (folder / "samples.jsonl").write_bytes(torn)
        again = run(Masked(), 40, out=tmp_path / str(number))
        assert (folder / "samples.jsonl").read_bytes() == content
        assert [r.line() for r in again.records] == [r.line() for r in whole.records]
        assert json.loads((folder / "result.json").read_text())["robust"]["correct"] == whole.robust.correct


@pytest.mark.usefixtures("trusting")
def test_shards_end_in_the_same_file_and_the_store_answers_afterwards(tmp_path: Path) -> None:
    whole = run(Masked(), 300, out=tmp_path / "whole")
    assert whole.folder is not None
    for number in (1, 0):
        found = evaluate(
            Masked(), whole.job.attack, data=images(300), out=tmp_path / "parts", shard=(number, 2), **SETTINGS
        )
    folder = tmp_path / "parts" / whole.folder.name
    assert (folder / "samples.jsonl").read_bytes() == (whole.folder / "samples.jsonl").read_bytes()
    assert found.results[0].robust == whole.robust
    heard: list[bool] = []

    class Ears(EvaluationListener):
        def done(self, result: Result | None, from_store: bool) -> None:
            heard.append(from_store)

        def again(self, job: Job, name: str) -> RecordListener:
            raise AssertionError("nothing is left to do")

    stored = run(Masked(), 300, out=tmp_path / "parts", listener=Ears())
    assert heard == [True] and [r.line() for r in stored.records] == [r.line() for r in whole.records]


@pytest.mark.usefixtures("trusting")
def test_what_only_measures_also_measures_the_second_pass() -> None:
    found = run(Masked(), 24, f"perceptual({QUICK}, lpips=False)")
    assert found.robust.correct == 0 and all("ssim" in r.evidence for r in found.records)
    assert found.section("auto") is not None


def reported(*records: SampleRecord, attack: str = "auto", threat: str = JOB.threat) -> tuple[list[str], list[str]]:
    """Notes and doubts of records alone."""
    job = replace(JOB, attack=attack, threat=threat)
    (told, _) = attack_text.example_attack(attack).attack.report(Run(job, records))
    return list(told.notes), list(told.doubts)


def test_survivors_in_l1_are_doubted_unless_autoattack_met_them() -> None:
    (doubt,) = reported(record(0), threat="l1:12")[1]
    assert "in l1 auto is no substitute for AutoAttack" in doubt and '"autoattack" --threat l1:12' in doubt
    met = replace(record(0), evidence={"spent full": 900})
    fell = replace(record(0, "fooled"), evidence={"stage": 0})
    assert reported(met, threat="l1:12")[1] == reported(fell, threat="l1:12")[1] == []


def test_survivors_that_all_fall_to_the_probe_leave_nobody_to_speak_of() -> None:
    fallen = replace(record(0, "fooled", number=PROBED), evidence={"stage": len(NAMES), "round": -1, "spent probe": 99})
    notes, doubts = reported(fallen)
    assert "assurance: all 1 survivors were probed, and all of them fell" in notes
    assert len(doubts) == 1 and "square, which uses logits alone" in doubts[0]  # and nothing of a last round
    assert '"square(queries=20000)" --threat linf:0.1 --data "d"' in doubts[0]


def test_a_last_round_that_still_broke_samples_is_said() -> None:
    late = replace(record(0, "fooled"), evidence={"stage": ALL.index("apgd margin"), "round": MOST})
    assert any("rounds still broke samples" in doubt for doubt in reported(late)[1])
    early = replace(late, evidence={"stage": 0, "round": 0})
    assert reported(early, record(1, spent=10))[1] == []


def test_blind_gradients_are_not_laid_at_the_door_of_cross_entropy_or_of_the_probe() -> None:
    """An escalation because no stage saw a gradient: no probe broke a sample, and no loss had a gradient."""
    seen = {"stage": len(NAMES) + 4, "round": -1, "zero_grad": True, "ce_flat": True, "spent full": 900}
    fallen = replace(record(0, "fooled", number=ESCALATED), evidence=seen)
    notes, doubts = reported(fallen, record(1))
    assert any("gradients vanish on survivors" in note for note in notes)
    assert not any("cross-entropy" in doubt or "the probe broke" in doubt for doubt in doubts)


def test_a_random_model_that_errs_on_a_probed_image_by_itself_counts_as_broken_by_the_probe() -> None:
    """No stage claimed it: the judge's draws alone decided."""
    probed = {"stage": -1, "round": -1, "spent probe": 99}
    records = (replace(record(0, "fooled", number=PROBED), evidence=probed), replace(record(1), evidence=probed))
    told = auto_report(records)
    assert told.assured is not None and (told.assured.survivors, told.assured.probed, told.assured.fell) == (2, 2, 1)
    assert not any("square" in doubt or "rounds" in doubt for doubt in reported(*records, record(2))[1])


@pytest.mark.parametrize(("claimed", "stored"), [(-1, -1), (0, 7), (2, 9)])
def test_stages_of_a_later_pass_are_numbered_after_the_first_unless_none_claimed_the_sample(
    claimed: int, stored: int
) -> None:
    probe = LaterPass(PROBED, attack_text.build("pgd", LpBall("linf", 0.1)), (0,), 7)
    found = replace(record(0, "fooled"), evidence={"stage": claimed})
    assert merged_record(record(0), found, probe).evidence["stage"] == stored


def test_who_falls_at_once_leaves_no_ladder() -> None:
    notes, _ = reported(replace(record(0, "fooled", spent=8), evidence={"stage": 0, "round": 0}))
    assert notes == ["the last one fell after 8 passes"]


class Batchwise(nn.Module):
    """A model fooled in large batches only: the judge's second forward, at half the batch, confirms nothing."""

    def forward(self, x: Tensor) -> Tensor:
        level = x.flatten(1).mean(1, keepdim=True)
        return torch.cat([10 * (level - (0.45 if len(x) >= 20 else 0.2)), *[0 * level] * 9], 1)


def test_a_success_that_is_not_confirmed_is_not_tried_again_on_a_budget() -> None:
    free = run(Batchwise(), 24, "auto(long=10)", batch_size=64)
    found = run(Batchwise(), 24, "auto(long=10, passes=150)", batch_size=64)
    assert found.fragile == 24 and max(r.forwards + r.backwards for r in found.records) <= 150
    assert sum(r.backwards for r in found.records) < sum(r.backwards for r in free.records)


@pytest.mark.usefixtures("trusting")
def test_fresh_shards_run_the_second_pass_again(tmp_path: Path) -> None:
    heard: list[str] = []
    quick = "auto(k=1, steps=1, long=2)"

    class Ears(EvaluationListener):
        def again(self, job: Job, name: str) -> RecordListener:
            heard.append(name)
            return lambda records, total: None

    for fresh in (False, True):
        for number in (0, 1):
            evaluate(
                Masked(),
                quick,
                data=images(260),
                out=tmp_path,
                shard=(number, 2),
                fresh=fresh,
                listener=Ears(),
                **SETTINGS,
            )
    assert heard == ["probe", "full", "probe", "full", "probe", "full"]
