"""Courses: phases one after another, choices of values side by side, and what they share trained once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.train.small_runs import KillAt, Killed
from tests.train.small_tora import OPTIONS, changes
from vitattack.core.errors import UsageError
from vitattack.train.courses import load_courses
from vitattack.train.loop.reporter import Reporter
from vitattack.train.recipe import Recipe
from vitattack.train.run_courses import TrainedCourse, final_folder, plan_courses, train_courses
from vitattack.train.session_options import SessionOptions

SWEEP = changes("lambda=0.1,0.9")


class Counting(Reporter):
    """Counts the runs that begin."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    def begin(self, recipe: Recipe, folder: Path, step: int, total: int) -> None:
        self.begun.append(f"{recipe.name} {step}")


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[TrainedCourse], list[str], Path]:
    """Two trade-offs in one go, with the runs that began for them, and their folder."""
    out, counting = tmp_path_factory.mktemp("swept"), Counting()
    trained = train_courses(load_courses("tora-tiny", SWEEP), out=out, reporter=counting, **OPTIONS)
    return trained, counting.begun, out


def weights(course: TrainedCourse, phase: int) -> dict[str, Tensor]:
    return load_file(course.runs[phase].last)


def test_phases_and_values_are_read() -> None:
    one, two = load_courses("tora-tiny", ["lambda=0.1,0.9", "rob=trades(beta=3, inner=pgd(steps=2))", "then.epochs=7"])
    assert (one.label, two.label) == ("lambda 0.1", "lambda 0.9")
    assert one.phases[0] == two.phases[0] and [phase.epochs for phase in one.phases] == [3, 7]
    assert one.phases[0].objective == "tora_apart(rob=trades(beta=3, inner=pgd(steps=2)))"
    assert two.phases[1].objective == "trade_off(share=0.9, rob=trades(beta=3, inner=pgd(steps=2)))"
    assert (two.phases[1].arch, two.phases[1].init) == (two.phases[0].arch, None)
    (alone,) = load_courses("tora-head-only-tiny", ["lambda=0.1"])
    assert alone.label == "" and len(alone.phases) == 1 and alone.phases[0].name == "tora-head-only-tiny-lambda-0.1"
    assert len(load_courses("tora-tiny", ["lambda=0.1,0.9", "rob=pgd_at,trades(beta=3, inner=pgd(steps=2))"])) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("lambda=", "lambda= takes one value or several different ones"),
        ("lambda=0.1,0.1", "several different ones"),
        ("lambda=" + ",".join(f"0.{number}" for number in range(100, 1200)), "more than 1000 courses: give fewer"),
        ("rob=" + "a" * 1001, "a text of more than 1000 characters"),
        ("lambda=1.5", "from 0 to 1, not 1.5"),
        ("lambda=few", "share=...\\) takes a number"),
        ("rob=tradez", "did you mean trades"),
        ("then.init=tiny-vit", "drop its init"),
        ("then.epoch=3", "unknown key 'epoch': did you mean epochs"),
        ("then=3", "keys and values of a second phase"),
    ],
)
def test_mistakes_are_named_in_one_line(change: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        train_courses(load_courses("tora-tiny", changes(change)), out=tmp_path, **OPTIONS)
    assert "\n" not in str(caught.value) and not any(tmp_path.iterdir())  # said before anything is trained


def test_a_sweep_shares_its_first_phase(swept: tuple[list[TrainedCourse], list[str], Path]) -> None:
    trained, begun, out = swept
    names = ["tora-tiny-phase1 0", "tora-tiny-lambda-0.1 0", "tora-tiny-lambda-0.9 0"]
    assert begun == names and len(list(out.iterdir())) == 3
    assert trained[0].runs[0] == trained[1].runs[0] and trained[0].final.folder != trained[1].final.folder
    assert [final_folder(each.course, out) for each in trained] == [each.final.folder for each in trained]
    counting = Counting()
    again = train_courses(load_courses("tora-tiny", SWEEP), out=out, reporter=counting, **OPTIONS)
    assert counting.begun == [] and again == trained


def test_backbone_and_adapters_stay_as_they_were(swept: tuple[list[TrainedCourse], list[str], Path]) -> None:
    """Phase 1 changes all but the backbone, phase 2 the fusion alone, to the bit."""
    trained, _, _ = swept
    (untrained,) = load_courses("tora-tiny", changes("epochs=0", "then=null"))
    (start,) = train_courses([untrained], out=trained[0].final.folder.parent / "start", **OPTIONS)
    begin, first = weights(start, 0), weights(trained[0], 0)
    assert {name for name in begin if torch.equal(begin[name], first[name])} == backbone(begin)
    for course in trained:
        second = weights(course, 1)
        changed = {name for name in first if not torch.equal(first[name], second[name])}
        assert changed == {name for name in first if "fusion" in name}
    one, two = (weights(course, 1)["layers.0.fusion.value.weight"] for course in trained)
    assert not torch.equal(one, two)


def backbone(names: dict[str, Tensor]) -> set[str]:
    return {name for name in names if name.startswith("backbone.")}


def test_frozen_weights_survive_half_precision_averages_and_decay(tmp_path: Path) -> None:
    """bfloat16 forwards, EMA, a large weight decay and an export in float16 leave what is frozen in its own bits."""
    rough = ["precision=bf16", "export=fp16", "optimiser=adamw(lr=1e-2, decay=0.5)", "lambda=0.5"]
    rough += ["hooks=grad_clip(1.0),ema(0.9),awp", "then.hooks=only('fusion'),grad_clip(1.0),ema(0.9),awp"]
    (trained,) = train_courses(load_courses("tora-tiny", changes(*rough)), out=tmp_path, **OPTIONS)
    (untrained,) = load_courses("tora-tiny", changes("epochs=0", "then=null"))
    (start,) = train_courses([untrained], out=tmp_path / "start", **OPTIONS)
    begin, first, second = weights(start, 0), weights(trained, 0), weights(trained, 1)
    assert all(
        torch.equal(begin[name], first[name]) and torch.equal(begin[name], second[name]) for name in backbone(begin)
    )
    for name in first:
        if "fusion" in name:
            assert second[name].dtype == torch.float16 and not torch.equal(first[name].float(), second[name].float())
        elif name not in backbone(first):
            assert first[name].dtype == torch.float16 and torch.equal(first[name].float(), second[name].float())


@pytest.mark.parametrize(("run", "step"), [(0, 2), (1, 2), (2, 1)])
def test_it_does_not_matter_where_a_sweep_was_killed(
    swept: tuple[list[TrainedCourse], list[str], Path], tmp_path: Path, run: int, step: int
) -> None:
    class KillIn(KillAt):
        runs = -1

        def begin(self, recipe: Recipe, folder: Path, at: int, total: int) -> None:
            self.runs += 1

        def step(self, row: dict[str, float]) -> None:
            if self.runs == run:
                super().step(row)

    courses, options = load_courses("tora-tiny", SWEEP), SessionOptions(save_every=1, log_every=1)
    with pytest.raises(Killed):
        train_courses(courses, out=tmp_path, reporter=KillIn(step), options=options, **OPTIONS)
    again = train_courses(courses, out=tmp_path, **OPTIONS)
    for whole, resumed in zip(swept[0], again, strict=True):
        for phase in (0, 1):
            a, b = weights(whole, phase), weights(resumed, phase)
            assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_sweep_is_planned_phase_by_phase() -> None:
    plans = plan_courses(load_courses("tora-tiny", [*SWEEP, "batch_size=4"]), **OPTIONS)
    assert [recipe.name for recipe, _ in plans] == ["tora-tiny-phase1", "tora-tiny-lambda-0.1", "tora-tiny-lambda-0.9"]
    assert all(plan.steps == 28 and plan.hours is not None and plan.flops == plans[0][1].flops for _, plan in plans)
    assert plans[1][1] is plans[2][1] is not plans[0][1]
