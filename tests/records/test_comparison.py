"""Comparisons: values against published and hand-computed ones, pairing by images, and what is refused."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests.records.making_runs import make_job, make_run
from vitattack.core.errors import UsageError
from vitattack.records import stats
from vitattack.records.comparison import Comparison, Side, compared, significance
from vitattack.records.comparison_words import sides_of
from vitattack.records.result import Result
from vitattack.records.stored_runs import stored_run
from vitattack.report.comparison import comparison_tables


@pytest.mark.parametrize(
    ("counts", "low", "high"),
    # Newcombe 1998, Statistics in Medicine 17, 2635-2650, method 10, for the first share minus the second
    [((20, 12, 2, 16), 0.0562, 0.3292), ((36, 12, 2, 0), 0.0569, 0.3404)],
)
def test_paired_intervals_against_newcombe(counts: tuple[int, int, int, int], low: float, high: float) -> None:
    gap = stats.paired_gap(*counts)
    assert (gap.difference, gap.low, gap.high) == pytest.approx((-0.2, -high, -low), abs=5e-5)


def test_paired_intervals_by_hand_and_at_their_ends() -> None:
    # 10 images, 4 robust in both, 3 in the first alone, 1 in the second alone, 2 in neither
    (l1, u1), (l2, u2) = stats.wilson(7, 10), stats.wilson(5, 10)
    # ad - bc = 5 is not above n/2 = 5: phi is 0, and the margins add up as those of independent shares
    gap = stats.paired_gap(4, 3, 1, 2)
    assert gap.difference == pytest.approx(-0.2)
    assert gap.low == pytest.approx(-0.2 - math.hypot(0.5 - l2, u1 - 0.7))
    assert gap.high == pytest.approx(-0.2 + math.hypot(u2 - 0.5, 0.7 - l1))
    # 6, 1, 1, 2: phi = (12 - 1 - 5) / sqrt(7 * 3 * 7 * 3) = 6 / 21
    low, high = stats.wilson(7, 10)
    down, up = 0.7 - low, high - 0.7
    half = math.sqrt(down * down - 2 * (6 / 21) * down * up + up * up)
    assert stats.paired_gap(6, 1, 1, 2) == pytest.approx((0.0, -half, half))
    for counts in [(0, 0, 0, 0), (5, 0, 0, 0), (0, 5, 0, 0), (0, 0, 5, 0), (0, 0, 0, 5)]:
        found = stats.paired_gap(*counts)
        assert -1 <= found.low <= found.difference <= found.high <= 1
    assert stats.paired_gap(3, 2, 5, 1).low == pytest.approx(-stats.paired_gap(3, 5, 2, 1).high)


def one(root: Path, letters: str, model: str, attack: str = "pgd", **more: object) -> Result:
    return stored_run(make_run(root, letters, model, attack, **more)).result  # type: ignore[arg-type]


def two_models(tmp_path: Path) -> Comparison:
    first = [one(tmp_path, "rrrrrrrfff", "a"), one(tmp_path, "rrrrrfffff", "a", "auto")]
    second = [one(tmp_path, "ffffrrrrcc", "b"), one(tmp_path, "fffffrrfcc", "b", "auto", doubts=["hm"])]
    return compared([Side("a", tuple(first)), Side("b", tuple(second))])


def test_two_models_image_by_image(tmp_path: Path) -> None:
    found = two_models(tmp_path)
    assert [row.name for row in found.rows] == ["pgd", "auto", "worst case"] and found.json()["rows"][0]["n"] == 10
    pgd = found.rows[0].contrasts[0]
    assert (pgd.lost, pgd.won, pgd.both, pgd.neither) == ((0, 1, 2, 3), (7,), 3, 2)
    assert pgd.gap == stats.paired_gap(3, 4, 1, 2) and pgd.gap.difference == pytest.approx(-0.3)
    assert pgd.paired.p_value == pytest.approx(2 * (1 + 5) / 2**5)  # at most one of five, on both sides
    worst = found.rows[2].contrasts[0]
    assert worst.first.accuracy.correct == 5 and worst.second.accuracy.correct == 2
    assert (worst.lost, worst.won) == ((0, 1, 2, 3, 4), (5, 6)) and worst.paired.p_value == pytest.approx(58 / 128)
    assert worst.first.passes == 18 and worst.first.seconds == 5
    assert found.doubts == ("b: hm",)
    content = json.loads(json.dumps(found.json()))
    assert content["rows"][0]["contrasts"][0]["lost"] == [0, 1, 2, 3]
    first, second = comparison_tables(found)
    assert first.title == "a against b | linf:8/255 | toys | n = 10" and second.rows[0][:3] == ("pgd", "b", "-30.0")
    assert "doubt: b: hm" in second.notes and any("3 tests" in note and "0.016" in note for note in second.notes)


def test_sides_by_their_names(tmp_path: Path) -> None:
    root, other = tmp_path / "runs", tmp_path / "other"
    two_models(root)
    one(other, "rrrrrrrrff", "a")
    by_model = compared(sides_of(["a", "b"], root))
    assert by_model.sides == ("a", "b") and len(by_model.rows) == 3
    by_attack = compared(sides_of(["pgd", "auto"], root))
    assert [row.name for row in by_attack.rows] in (["a", "b"], ["b", "a"])
    key = make_job("b").key
    by_key = compared(sides_of([str(root / make_job("a").folder), key[:8]], root))
    assert by_key.rows[0].contrasts[0].lost == (0, 1, 2, 3)
    stores = compared(sides_of([str(root), str(other)], root))
    assert [len(contrast.won) for row in stores.rows for contrast in row.contrasts] == [1]
    three = compared(sides_of(["a", "b", "a"], root))
    assert three.sides == ("a (1)", "b", "a (2)") and three.rows[0].contrasts[1].gap.difference == 0


def test_other_images_are_refused_in_one_line(tmp_path: Path) -> None:
    a = one(tmp_path, "rrrr", "a")
    for other in (
        one(tmp_path, "rrrr", "b", pixels="others"),
        one(tmp_path, "rrrrr", "b", data="toys[:5]"),
        one(tmp_path, "rrrr", "c", first_row=4),
    ):
        with pytest.raises(UsageError, match=r"the images are not the same \(a has 4 of toys, b has .*run both on"):
            compared([Side("a", (a,)), Side("b", (other,))])
    with pytest.raises(UsageError, match="no run of the same"):
        compared([Side("a", (a,)), Side("b", (one(tmp_path, "rrrr", "b", "auto"), one(tmp_path, "rrrr", "b", "fgsm")))])
    with pytest.raises(UsageError, match="needs two sides"):
        compared([Side("a", (a,))])


def test_stores_with_runs_on_several_sets_of_images(tmp_path: Path) -> None:
    for root in ("here", "there"):
        for data, letters in (("toys[:4]", "rrff"), ("toys[:6]", "rrrfff"), ("others", "rrr")):
            for attack in ("pgd", "fgsm") if data != "others" else ("auto",):
                one(tmp_path / root, letters, "a", attack, data=data, pixels=data)
    found = compared(sides_of([str(tmp_path / "here"), str(tmp_path / "there")], tmp_path))
    assert "n = 3 to 6" in found.title and "toys" not in found.title
    names = [row.name for row in found.rows]
    assert sorted(names) == ["auto others", "fgsm toys[:6]", "pgd toys[:6]", "worst case toys[:6]"]


def test_the_same_rows_prepared_for_two_models_are_the_same_pictures(tmp_path: Path) -> None:
    from dataclasses import replace

    def prepared(result: Result, transform: str, rows: str = "x") -> Result:
        return replace(result, provenance={"protocol": {"transform": transform, "rows_sha256": rows}})

    a, b = one(tmp_path, "rrrr", "a"), one(tmp_path, "rffr", "b", pixels="larger")
    found = compared([Side("a", (prepared(a, "crop224"),)), Side("b", (prepared(b, "crop384"),))])
    assert found.notes == ("the same pictures, prepared differently for each model",)
    for strange in (prepared(b, "crop224"), prepared(b, "crop384", "y"), b):
        with pytest.raises(UsageError, match="the images are not the same"):
            compared([Side("a", (prepared(a, "crop224"),)), Side("b", (strange,))])


def test_random_models_are_compared_by_their_draws(tmp_path: Path) -> None:
    from dataclasses import replace

    def drawn(result: Result, bits: list[str]) -> Result:
        evidence = [{"draws": 4, "clean_right": "1111", "right": each} for each in bits]
        records = [replace(r, evidence=e) for r, e in zip(result.records, evidence, strict=True)]
        return replace(result, records=records)

    a = drawn(one(tmp_path, "rrff", "a"), ["1111", "1110", "0100", "0000"])
    b = drawn(one(tmp_path, "rfff", "b"), ["1111", "0010", "0100", "0000"])
    gap = compared([Side("a", (a,)), Side("b", (b,))]).rows[0].contrasts[0].gap
    assert gap.difference == pytest.approx(-0.125)
    assert gap.high - gap.low == pytest.approx(2 * stats.Z95 * math.sqrt((3 * 0.125**2 + 0.375**2) / (4 * 3)))


def test_the_command_needs_no_torch_and_says_what_is_wrong(tmp_path: Path) -> None:
    two_models(tmp_path / "runs")
    code = "import sys; sys.argv = ['vitattack', *sys.argv[1:]]; from vitattack.cli.main import main\n"
    code += "try: main()\nfinally: print('torch' in sys.modules, 'numpy' in sys.modules, file=sys.stderr)"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, "compare", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    done = run("a", "b", "--format", "latex")
    assert done.returncode == 0 and done.stderr == "False False\n" and "a against b" in done.stdout
    for words, message in [
        (("a",), "a comparison needs two sides"),
        (("a", "nothing"), "unknown run, model or attack 'nothing'"),
        (("a", "nothing"), "finished runs in 'runs', which vitattack eval makes"),
        (("a", "b", "--out", "nowhere"), "there is no run 'a', and no store 'nowhere'"),
        (("a", "b", "--threat", "l2:1"), "there is no run 'a'"),
    ]:
        wrong = run(*words)
        assert wrong.returncode == 2 and message in wrong.stderr and wrong.stderr.count("\n") == 2


def test_several_tests_are_held_against_a_stricter_level() -> None:
    assert (
        significance(1) is None and "below 0.025 " in str(significance(2)) and "below 0.0071 " in str(significance(7))
    )
