"""The comparison itself: a fault planted in any record is reported, and so is one in a run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from . import cases
from .cases import CASES, QUICK, Command, Evaluation, Listed
from .comparing import DIFFERENT, EQUAL, OTHER_BYTES, compare
from .record import main
from .storing import RECORDS, Record, place, read_environment

EVALUATIONS = [name for name, case in CASES.items() if isinstance(case, Evaluation)]


def each(names: Iterable[str]) -> pytest.MarkDecorator:
    """Every record, most of them in the slow suite."""
    spread = enumerate(names)
    return pytest.mark.parametrize(
        "name", [pytest.param(n, marks=pytest.mark.slow if i % 6 else ()) for i, n in spread]
    )


every_case, every_evaluation = each(CASES), each(EVALUATIONS)
PGD = "quick/linf/pgd"
DIGESTS = (
    ("train/trades-tiny", "digests"),
    ("train/aas-at-tiny", "digests"),
    ("bench/demo", "jobs"),
    ("craft/linf/gama", "evidence"),
)


@pytest.fixture(autouse=True)
def nothing_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are compared with copies of themselves here: no text is renamed and no difference listed."""
    monkeypatch.setattr(cases, "RENAMED", {})
    monkeypatch.setattr(cases, "LISTED", ())


def stored(name: str) -> Record:
    return Record.read(place(RECORDS, name))


def outcome(name: str, changed: Record, *, same: bool = True) -> str:
    return compare(CASES[name], stored(name), changed, same_environment=same).outcome


def samples(record: Record, change: Callable[[list[dict[str, Any]]], object]) -> Record:
    """The record with something done to its samples."""
    rows = [json.loads(line) for line in record.samples]
    change(rows)
    return replace(record, samples=tuple(json.dumps(row, separators=(",", ":")) for row in rows))


def numbers(content: Any) -> Iterator[tuple[Any, Any]]:
    """Where the numbers of an object are: container and key."""
    pairs = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in pairs:
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield content, key
        yield from numbers(value)


def test_records_and_cases_are_the_same_ones() -> None:
    kept = {str(path.relative_to(RECORDS)).removesuffix(".jsonl.gz") for path in RECORDS.rglob("*.gz")}
    assert kept == set(CASES) and read_environment(RECORDS) is not None
    assert sum(path.stat().st_size for path in RECORDS.rglob("*.gz")) < 2_000_000


def test_every_attack_there_was_has_a_quick_case() -> None:
    listed = {row["name"] for row in stored("prices/attacks").content["result"]}
    assert listed == set(QUICK)


@every_evaluation
def test_an_evaluation_attacked_what_it_says(name: str) -> None:
    case, record = CASES[name], stored(name)
    assert isinstance(case, Evaluation)
    rows = [json.loads(line) for line in record.samples]
    assert {row["index"] for row in rows} == set(range(case.limit))
    assert sum(record.content["counts"]) == len(rows) >= case.limit * len(record.content["counts"])
    assert any(row["status"] in ("robust", "fooled") for row in rows)


@every_case
def test_a_record_is_equal_to_itself(name: str) -> None:
    assert outcome(name, stored(name)) == outcome(name, stored(name), same=False) == EQUAL


@every_evaluation
def test_a_digit_of_any_column_is_seen(name: str) -> None:
    """The last digits of every number of the last line in turn."""
    record = stored(name)
    row = json.loads(record.samples[-1])
    for holder, key in list(numbers(row)):
        before = holder[key]
        holder[key] = before + 1 if isinstance(before, int) else before * (1 + 1e-15) or 1e-9
        line = json.dumps(row, separators=(",", ":"))
        assert line != record.samples[-1]
        assert outcome(name, replace(record, samples=(*record.samples[:-1], line))) != EQUAL, key
        holder[key] = before


@every_evaluation
def test_a_verdict_is_told_from_its_circumstances(name: str) -> None:
    def flip(rows: list[dict[str, Any]]) -> None:
        rows[-1]["status"] = "robust" if rows[-1]["status"] == "fooled" else "fooled"

    assert outcome(name, samples(stored(name), flip)) == DIFFERENT
    assert outcome(name, samples(stored(name), lambda rows: rows[0].update(forwards=-1))) == OTHER_BYTES
    assert outcome(name, samples(stored(name), lambda rows: rows.pop())) == DIFFERENT


@every_evaluation
def test_on_another_machine_discrete_columns_count(name: str) -> None:
    case, record = CASES[name], stored(name)
    assert isinstance(case, Evaluation)
    allowed = max(1, case.limit * len(record.content["counts"]) // 48)

    def flips(count: int) -> Callable[[list[dict[str, Any]]], object]:
        def change(rows: list[dict[str, Any]]) -> None:
            for row in rows[-count:]:
                row["status"] = "robust" if row["status"] == "fooled" else "fooled"

        return change

    assert outcome(name, samples(record, lambda rows: rows[-1].update(size=0.5)), same=False) == EQUAL
    assert outcome(name, samples(record, flips(allowed)), same=False) == EQUAL
    assert outcome(name, samples(record, flips(allowed + 1)), same=False) == DIFFERENT
    for column in ("label", "clean"):
        assert outcome(name, samples(record, lambda rows, c=column: rows[-1].update({c: 77})), same=False) == DIFFERENT


@every_case
def test_a_number_of_an_output_is_seen(name: str) -> None:
    """A few numbers spread over what stands beside the samples."""
    record = stored(name)
    places = list(numbers(record.content))
    assert places or isinstance(CASES[name], Command)
    for holder, key in places[:: max(1, len(places) // 5)]:
        before = holder[key]
        holder[key] = before + 1 if isinstance(before, int) else 1.01 * before or 1.0
        assert outcome(name, record) == DIFFERENT, key
        if isinstance(before, float) and before:
            holder[key] = before * (1 + 1e-12)
            assert outcome(name, record) == OTHER_BYTES, key
        holder[key] = before
    assert outcome(name, record) == EQUAL


@pytest.mark.parametrize("name", [name for name in CASES if name not in EVALUATIONS])
def test_on_another_machine_outputs_are_still_compared(name: str) -> None:
    """A value that is far off, a text and a part that is gone are reported; digests are not."""
    record = stored(name)
    unsteady = ("steps", "digests", "jobs")
    seen = 0
    places = list(numbers(record.content))
    for holder, key in places[:: max(1, len(places) // 20)]:
        before = holder[key]
        holder[key] = before * 10 + 100
        seen += outcome(name, record, same=False) == DIFFERENT
        holder[key] = before
    assert seen >= 3, "nothing but unsteady numbers"
    for key in set(unsteady) & set(record.content):
        assert outcome(name, replace(record, content={**record.content, key: {}}), same=False) == DIFFERENT
    result = record.content["result"]
    result.pop("schema" if isinstance(result, dict) else 0)
    assert outcome(name, record, same=False) == DIFFERENT


def part(record: Record, key: str) -> dict[str, Any]:
    found: dict[str, Any] = record.content.get(key) or record.content["result"][key]
    return found


def test_digests_are_seen() -> None:
    for name, key in DIGESTS:
        for text in part(stored(name), key):
            record = stored(name)
            part(record, key)[text] = "0" * 64
            assert outcome(name, record) == DIFFERENT
            assert outcome(name, record, same=False) == EQUAL


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("craft/")])
def test_other_pixels_are_seen(name: str) -> None:
    record = stored(name)
    result = record.content["result"]
    assert result["moved"] > 0
    result["pixels"] = "0" * 16
    assert outcome(name, record) == DIFFERENT
    assert outcome(name, record, same=False) == EQUAL
    result["fooled"] += 3
    assert outcome(name, record, same=False) == DIFFERENT


def test_wrapping_an_attack_changes_its_pixels() -> None:
    """So that a wrapper that did nothing would be seen."""
    for ball in ("linf", "l2"):
        alone = stored(f"craft/{ball}/pgd").content["result"]["pixels"]
        for name in ("worst", "restarts", "targets", "transfer", "scale", "given", "eot", "fp64"):
            assert stored(f"craft/{ball}/{name}").content["result"]["pixels"] != alone, name


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("saturated/")])
def test_scaled_attention_breaks_what_the_plain_attack_does_not(name: str) -> None:
    rows = [json.loads(line) for line in stored(name).samples]
    assert any(row["status"] == "fooled" and row["evidence"]["stage"] > 0 for row in rows)


def test_renamed_texts_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "default/transfer/tiny-vit"
    old, new = "preset=s003", "preset=bhojanapalli2021"
    record = stored(name)
    content = json.loads(json.dumps(record.content).replace(old, new))
    lines = tuple(line.replace("source_zero_grad", "source_zzz") for line in record.samples)
    assert lines != record.samples and content != record.content
    after = Record(lines, content)
    assert outcome(name, after) == DIFFERENT
    monkeypatch.setattr(cases, "RENAMED", {old: new, "source_zero_grad": "source_zzz", "tiny": "huge"})
    assert outcome(name, after) == EQUAL
    assert outcome(name, record) == DIFFERENT


def test_a_renamed_column_may_take_another_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of the evidence stand in alphabetical order; those that kept their names keep their order."""

    def to_the_front(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if "margin" in row["evidence"]:
                row["evidence"] = {"a_margin": row["evidence"].pop("margin"), **row["evidence"]}

    monkeypatch.setattr(cases, "RENAMED", {"margin": "a_margin"})
    assert outcome(PGD, samples(stored(PGD), to_the_front)) == EQUAL
    assert outcome(PGD, stored(PGD)) == OTHER_BYTES
    monkeypatch.setattr(cases, "RENAMED", {})
    assert outcome(PGD, samples(stored(PGD), lambda rows: rows[0].update(index=rows[0].pop("index")))) == OTHER_BYTES


def test_a_listed_difference_is_no_worse_than_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    def other_passes(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            row["forwards"] += 1

    changed = samples(stored(PGD), other_passes)
    monkeypatch.setattr(cases, "LISTED", (Listed("quick/*", "samples*.forwards", "bytes", "one forward more"),))
    told = compare(CASES[PGD], stored(PGD), changed, same_environment=True)
    assert told.outcome == EQUAL and told.listed == 48
    wrong = samples(changed, lambda rows: rows[0].update(status="invalid"))
    assert outcome(PGD, wrong) == DIFFERENT
    monkeypatch.setattr(cases, "LISTED", (Listed("quick/*", "samples*", "bytes", "anything but a verdict"),))
    assert outcome(PGD, wrong) == DIFFERENT
    monkeypatch.setattr(cases, "LISTED", (Listed("default/*", "*", "value", "another case"),))
    assert outcome(PGD, changed) == OTHER_BYTES


def test_sentences_may_change_their_words_and_not_their_numbers() -> None:
    name = "quick/linf/pgd"
    before, *_ = stored(name).content["result"]["doubts"]
    assert "3 steps" in before and "0.75" in before

    def with_doubt(text: str) -> Record:
        record = stored(name)
        record.content["result"]["doubts"][0] = text
        return record

    assert outcome(name, with_doubt("only 0.75 eps are within reach of 3 steps")) == EQUAL
    assert outcome(name, with_doubt(before.replace("0.75", "0.85"))) == DIFFERENT
    gone = stored(name)
    gone.content["result"]["doubts"].clear()
    assert outcome(name, gone) == DIFFERENT


def test_the_script_reports_a_planted_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a run to the exit code: once with the records as they are, once with one number changed."""
    monkeypatch.setenv("VITATTACK_HOME", str(tmp_path))
    name = "quick/linf/fgsm"
    folder = tmp_path / "records"
    place(folder, name).parent.mkdir(parents=True)
    shutil.copy(RECORDS / "environment.json", folder)
    shutil.copy(place(RECORDS, name), place(folder, name))
    words = ["--only", name, "--dir", str(folder), "--check"]
    good = CliRunner().invoke(main, words)
    assert good.exit_code == 0 and "1 of 1 as recorded" in good.output, good.output
    samples(stored(name), lambda rows: rows[5].update(label=9 - rows[5]["label"])).write(place(folder, name))
    bad = CliRunner().invoke(main, words)
    assert bad.exit_code == 1 and "different | 1 of 1: samples" in bad.output and ".label:" in bad.output, bad.output
    place(folder, name).unlink()
    gone = CliRunner().invoke(main, words)
    assert gone.exit_code == 1 and "no record" in gone.output


def test_records_are_written_alike_twice(tmp_path: Path) -> None:
    stored(PGD).write(tmp_path / "one.gz")
    assert (tmp_path / "one.gz").read_bytes() == place(RECORDS, PGD).read_bytes()
