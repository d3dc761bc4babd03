"""Leaderboards: whole runs become rows with the lowest number of each kind of attack, damaged ones are left out."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.report.stored_runs import job, record, store_run
from tests.report.test_page import HOSTILE
from vitattack.core.errors import UsageError
from vitattack.records.record import SampleRecord
from vitattack.records.report_section import Section
from vitattack.report.overview.board import read_leaderboard
from vitattack.report.page.board_pages import index_page, write_leaderboard

N = 20
CERTIFICATE = Section("certificate", {"tested": 64, "found": {"auto": 63}})


def outcomes(fooled: Sequence[int], wrong: Sequence[int] = (0, 1)) -> list[SampleRecord]:
    return [record(i, "clean_wrong" if i in wrong else "fooled" if i in fooled else "robust") for i in range(N)]


def submit(root: Path, model: str, attack: str, fooled: Sequence[int], **more: Any) -> Path:
    of = job(model, attack, weights=model.ljust(64, "w"), **more.pop("job", {}))
    return store_run(root, of, outcomes(fooled), **more)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two submissions of a store each, on the same images; one more model in the second, a damaged and an unfinished run."""
    one, two = tmp_path / "sent" / "one", tmp_path / "sent" / "two"
    submit(one, "weak", "auto", range(2, 12), sections=[CERTIFICATE], doubts=["a doubt"])
    submit(one, "weak", "autoattack", range(4, 12))
    submit(one, "weak", "autoattack_ref(version=plus)", range(3, 12))
    submit(one, "weak", "examples(found.npz)", [2, 19])
    submit(one, "weak", "pgd", [5])
    submit(two, "strong", "autoattack", range(2, 6))
    submit(two, "untested", "pgd", [4])
    submit(two, "strong", "auto", range(2, 8), job={"threat": "linf:4/255"})
    damaged = submit(two, "broken", "auto", [2])
    (damaged / "result.json").write_text((damaged / "result.json").read_text().replace("robust", "rubost", 1))
    return tmp_path / "sent"


def test_a_row_has_the_lowest_number_of_each_kind_and_the_worst_case_of_all(folder: Path) -> None:
    found = read_leaderboard([folder])
    assert [(board.threat, len(board.entries)) for board in found.boards] == [("linf:8/255", 2), ("linf:4/255", 1)]
    strong, weak = found.boards[0].entries
    assert (strong.row.model, weak.row.model) == ("strong", "weak")
    assert weak.auto is not None and weak.auto.robust.correct == 8 and weak.certificate == (63, 64)
    assert weak.autoattack is not None and weak.autoattack.job.attack == "autoattack_ref(version=plus)"
    assert weak.other is not None and weak.other.job.attack == "examples(found.npz)"
    # auto fools images 2 to 11, and the examples 19 as well
    assert weak.row.worst.correct == N - 2 - 11 and weak.row.clean.correct == N - 2
    assert strong.auto is None and strong.other is None and strong.certificate is None


def test_damaged_runs_and_models_without_a_strong_attack_are_left_out_with_the_reason(folder: Path) -> None:
    reasons = {str(each.folder): "; ".join(each.reasons) for each in read_leaderboard([folder]).left_out}
    assert len(reasons) == 2
    assert any("result.json" in reason for reason in reasons.values())
    assert any("neither auto nor AutoAttack has run" in reason for reason in reasons.values())
    store = store_run(folder / "three", job("late", "auto"), outcomes([3]), finished=False)
    assert any(each.folder == store and "unfinished" in each.reasons[0] for each in read_leaderboard([folder]).left_out)


def test_a_store_alone_and_its_runs_are_found_once(folder: Path) -> None:
    alone = read_leaderboard([folder / "one"])
    assert [entry.row.model for board in alone.boards for entry in board.entries] == ["weak"]
    assert read_leaderboard([folder, folder / "one"]).json()["boards"] == read_leaderboard([folder]).json()["boards"]


def test_the_pages_hold_the_numbers_ask_for_nothing_and_link_to_a_report_of_each_model(
    folder: Path, tmp_path: Path
) -> None:
    found = read_leaderboard([folder])
    index, data, *models = write_leaderboard(found, tmp_path / "site", "Robust models")
    text = index.read_text()
    assert text == index_page(read_leaderboard([folder]), "Robust models")  # the same runs, the same bytes
    row = text[text.index(">weak<") :].partition("</tr>")[0]
    numbers = re.findall(r"<td[^>]*>(?:<b>)?([\d.]+)(?:</b>)?(?:<div|</td)", row)
    assert numbers[:5] == ["90.0", "40.0", "45.0", "80.0", "35.0"] and "63 of 64" in row and "a doubt" in row
    assert not re.search(r"<script|https?://|src=", text)
    links = re.findall(r'href="(models/[^"]+)"', text)
    assert len(links) == len(models) == 3 and all((index.parent / link).is_file() for link in links)
    assert "examples(found.npz)" in (index.parent / links[1]).read_text()
    content = json.loads(data.read_text())
    assert content["boards"][0]["entries"][1]["worst_case"]["accuracy"] == pytest.approx(7 / 20)
    assert content["boards"][0]["entries"][1]["certificate"] == {"found": 63, "planted": 64}


def test_names_from_others_cannot_become_markup(tmp_path: Path) -> None:
    for name in HOSTILE:
        submit(tmp_path, name, "auto", [2], doubts=[name])
    found = read_leaderboard([tmp_path])
    text = index_page(found, HOSTILE[0])
    assert len(found.boards[0].entries) == len(HOSTILE)
    assert not re.search(r"<img|<script|<b onmouse|\x1b|\u202e", text)


def test_the_command_writes_pages_and_says_what_it_left_out(folder: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "vitattack.cli", "leaderboard", str(folder)]
    done = subprocess.run([*words, "-o", "pages"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "3 rows on 2 boards" in done.stderr and done.stderr.count("left out: ") == 2
    assert (tmp_path / "pages" / "index.html").is_file()
    printed = subprocess.run([*words, "--json"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert json.loads(printed.stdout) == json.loads((tmp_path / "pages" / "leaderboard.json").read_text())


def test_folders_without_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run in these folders"):
        read_leaderboard([tmp_path])
    with pytest.raises(UsageError, match="is no folder"):
        read_leaderboard([tmp_path / "none"])
