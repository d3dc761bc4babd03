"""Figures for papers: every kind in every format, embedded fonts, widths, and names that are no formulas."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Literal

import pytest

from tests.report.stored_runs import drawn_records, job, record, store_run
from tests.report.test_page import HOSTILE
from vitattack.core.errors import UsageError
from vitattack.records.report_section import Section
from vitattack.report.overview.attachments import read_attachments
from vitattack.report.overview.figures import Figure, Intervals, Lines, figures
from vitattack.report.overview.kinds import KINDS
from vitattack.report.overview.read import read_overview
from vitattack.report.plots.draw import sheet
from vitattack.report.plots.paper import COLOURS, WIDTHS, line_style, paper_style, save

ACCURACY = {"accuracy": 0.5, "low": 0.2, "high": 0.8, "correct": 5}


@pytest.fixture(scope="module")
def every_kind(tmp_path_factory: pytest.TempPathFactory) -> list[Figure]:
    """Figures of a store that has something for every kind."""
    root = tmp_path_factory.mktemp("runs")
    records = drawn_records(40, 1)
    stages = {"bought": [{"stage": "targets", "tried": 30, "broke": 10, "passes": 400}]}
    store_run(root, job(attack="auto"), records, sections=[Section("auto", stages)])
    store_run(root, job(attack="aas(pgd)"), records, sections=[Section("referee", {"RA_base_orig": ACCURACY})])
    store_run(root, job(threat="linf:4/255", attack="auto"), drawn_records(40, 2, 0.7))
    store_run(root, job(attack="fab"), [record(at, "fooled", evidence={"distance": 0.001 * at}) for at in range(9)])
    moved = [record(at, "fooled", evidence={"tx": 1.0 * at, "ty": 0.0, "angle": 5.0}) for at in range(3)]
    store_run(root, job(attack="spatial", threat="spatial"), moved)
    store_run(root, job("other", 'transfer("tiny-vit", auto)', weights="o" * 64), records)
    softmax = root / "softmax.json"
    layers = [{"histogram": [1] * 64, "block": f"model.blocks.{at}", "name": "", "verdict": "ok"} for at in range(5)]
    softmax.write_text(json.dumps({"model": "m", "data": "d", "n": 4, "verdict": "ok", "layers": layers}))
    return figures(read_overview([root]), read_attachments([softmax]))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_drawn_as_wide_as_columns_are(every_kind: list[Figure], tmp_path: Path, kind: str) -> None:
    columns: Literal[1, 2] = 1 if kind in ("accuracy", "passes") else 2
    found = [figure for figure in every_kind if figure.head.kind == kind]
    assert found
    with paper_style():
        whole = sheet(found, columns)
        assert whole.get_figwidth() == WIDTHS[columns]
        save(whole, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_fonts_are_embedded_and_equal_figures_are_equal_files(every_kind: list[Figure], tmp_path: Path) -> None:
    lines = [figure for figure in every_kind if isinstance(figure, Lines)][:1]
    for suffix in ("pdf", "svg"):
        for name in ("one", "two"):
            with paper_style():
                save(sheet(lines), tmp_path / f"{name}.{suffix}")
        one, two = ((tmp_path / f"{name}.{suffix}").read_bytes() for name in ("one", "two"))
        assert one == two
        if suffix == "pdf":
            assert b"/Subtype /Type0" in one
            assert b"/FontFile2" in one
            assert b"/Subtype /Type3" not in one
        else:
            assert b"<text" not in one


def test_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    for text in ("$x_1$ costs $", *HOSTILE):
        section = Section("stages", {text: 1})
        records = [record(0, "fooled", evidence={"stage": 0}), record(1)]
        store_run(tmp_path, job(text, text), records, sections=[section])
    found = figures(read_overview([tmp_path]))
    assert [figure.head.kind for figure in found] == ["accuracy", "passes", *["stages"] * 10]
    with paper_style():
        save(sheet(found), tmp_path / "figure.pdf")


def test_a_name_says_only_what_differs(tmp_path: Path) -> None:
    for model, attack in (("a", "pgd"), ("a", "fgsm")):
        store_run(tmp_path, job(model, attack), [record(0), record(1, "fooled")])
    (accuracy,) = [figure for figure in figures(read_overview([tmp_path])) if isinstance(figure, Intervals)]
    assert [name for name, _ in accuracy.rows] == ["fgsm", "pgd"]
    assert accuracy.head.about == "a, linf:8/255, cifar10-demo[:10], n = 2"


def test_no_two_lines_of_a_figure_look_the_same() -> None:
    styles = [tuple(line_style(at).values()) for at in range(28)]
    assert len({*styles}) == len(styles)


def test_colours_are_apart_for_every_kind_of_colour_vision() -> None:
    """Distances in the colours that protanopes and deuteranopes see (Viénot, Brettel and Mollon, 1999)."""
    views = {
        "all": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
        "protan": ((0.11238, 0.88762, 0), (0.11238, 0.88762, 0), (0.00401, -0.00401, 1)),
        "deutan": ((0.29275, 0.70725, 0), (0.29275, 0.70725, 0), (-0.02234, 0.02234, 1)),
    }
    linear = [[(int(colour[at : at + 2], 16) / 255) ** 2.2 for at in (1, 3, 5)] for colour in COLOURS]
    for rows in views.values():
        seen = [
            [max(0.0, sum(a * b for a, b in zip(row, each, strict=True))) ** (1 / 2.2) for row in rows]
            for each in linear
        ]
        for at, one in enumerate(seen):
            for two in seen[at + 1 :]:
                assert sum((a - b) ** 2 for a, b in zip(one, two, strict=True)) ** 0.5 > 0.12


def test_too_many_panels_are_refused(every_kind: list[Figure]) -> None:
    with pytest.raises(UsageError, match="name fewer runs, 12 panels are the most"):
        sheet(every_kind * 3)


def run_command(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vitattack.cli", "plot", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def test_the_command_writes_the_file_and_says_so(tmp_path: Path) -> None:
    store_run(tmp_path / "runs", job(), drawn_records(20, 1))
    done = run_command("passes", "-o", "out.pdf", "--columns", "2", "--no-title", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "wrote out.pdf: 1 panel\n")
    content = (tmp_path / "out.pdf").read_bytes()
    box = re.search(rb"/MediaBox \[ 0 0 ([\d.]+)", content)
    assert box is not None
    assert float(box[1]) == pytest.approx(72 * WIDTHS[2])
    streams = re.findall(rb"stream\r?\n(.*?)endstream", content, re.DOTALL)
    assert any(b"BT" in zlib.decompress(each) for each in streams if each[:1] == b"\x78")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("passes", "-o", "out.jpg"), "figure 'out.jpg' has no known format: end it in .png, .svg or .pdf"),
        (
            ("referee",),
            "nothing for 'referee' (the accuracies of an AAS run, by both protocols): kinds they have: passes",
        ),
        (("histogram",), "'histogram' is not one of"),
        (("passes", "missing/"), "is no folder"),
        (("passes", "-o", "missing/out.pdf"), "cannot write"),
    ],
)
def test_wrong_words_are_answered_in_one_line(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    store_run(tmp_path / "runs", job(), [record(0), record(1, "fooled")])
    done = run_command(*words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
