"""Tables for papers and for narrow terminals: heads over heads, the best marked, seven columns in 80."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from tests.cli.conftest import Here
from tests.cli.conftest import here as here
from tests.records.making_runs import make_run
from tests.report.test_bench_tables import FILE, made
from vitattack.core.errors import UsageError
from vitattack.core.table import Table
from vitattack.records.result import Result
from vitattack.records.stored_runs import stored_runs
from vitattack.report.bench_tables import bench_tables
from vitattack.report.grid import fitted, wrapped
from vitattack.report.run_grid import run_grid

MODELS = ("tiny-vit-standard", "rb/Liu2023Comprehensive_Swin-B", "b")
ATTACKS = ("pgd(steps=20)", "gama(steps=50)", "auto")


@pytest.fixture
def results(tmp_path: Path) -> list[Result]:
    """Three models, three attacks and two budgets; b is best under all but auto, where it ties with the second."""
    robust = {"tiny-vit-standard": 2, "rb/Liu2023Comprehensive_Swin-B": 5, "b": 6}
    for model in MODELS:
        for at, attack in enumerate(ATTACKS):
            for threat in ("linf:4/255", "linf:8/255"):
                count = min(robust[model], 5) if attack == "auto" else robust[model]
                count -= (threat == "linf:8/255") + (at == 1)
                make_run(tmp_path / "runs", "r" * count + "f" * (7 - count) + "c", model, attack, threat=threat)
    return [run.result for run in stored_runs(tmp_path / "runs")][::-1]


def columns_of(latex: str) -> list[int]:
    """Columns that each row of a LaTeX table takes."""
    rows = [line for line in latex.splitlines() if line.endswith("\\\\")]
    spans = [[int(n) for n in re.findall(r"\\multicolumn\{(\d+)\}", row)] for row in rows]
    return [len(re.split(r"(?<!\\)&", row)) + sum(span) - len(span) for row, span in zip(rows, spans, strict=True)]


def test_budgets_stand_over_attacks_and_the_best_is_bold(results: list[Result]) -> None:
    wide, _ = run_grid(results, ["model"], ["threat", "attack"])
    latex = wide.latex()
    assert len(wide.columns) == 1 + 1 + 2 * 4 and set(columns_of(latex)) == {10}
    assert latex.count("\\multicolumn{4}{c}{linf:4/255}") == latex.count("\\multicolumn{4}{c}{linf:8/255}") == 1
    assert latex.count("\\cmidrule(lr)") == 2 and "\\begin{table*}" in latex and "\\linewidth" in latex
    by_model = {row.split(" &")[0]: row for row in latex.splitlines() if row.endswith("\\\\")}
    bold = {model: by_model[model.replace("_", "\\_")].count("\\textbf") for model in MODELS}
    assert bold["tiny-vit-standard"] == 0 and bold["b"] > bold["rb/Liu2023Comprehensive_Swin-B"] > 0
    assert by_model["b"].count("\\textbf{75.0} (40.9-92.9)") >= 1  # the number alone


def test_eps_stands_in_rows_or_columns_and_intervals_are_optional(results: list[Result]) -> None:
    rows, _ = run_grid(results, ["model", "threat"], ["attack"], intervals=False)
    assert rows.left == 2 and len(rows.rows) == 6 and set(rows.columns[2:]) == {"clean", "worst case", *ATTACKS}
    assert all(re.fullmatch(r"\d+\.\d", cell) for row in rows.rows for cell in row[2:])
    assert "\\multicolumn" not in rows.latex() and set(columns_of(rows.latex())) == {7}
    attacks_down, _ = run_grid(results, ["attack"], ["model", "threat"])
    assert [head for head, _ in attacks_down.groups[:2]] == [attacks_down.groups[0][0]] * 2
    for down, across, message in [
        (["model"], ["threat"], "each once"),
        (["model"], ["eps", "attack"], "unknown axis 'eps'"),
        (["model", "model"], ["attack", "threat"], "each once"),
    ]:
        with pytest.raises(UsageError, match=message):
            run_grid(results, down, across)


def test_seven_columns_fit_into_80_characters(results: list[Result]) -> None:
    of_two = [r for r in results if r.job.attack != "auto"]  # clean, and two attacks with their worst case, twice
    wide, narrow = run_grid(of_two, ["model"], ["threat", "attack"])
    [shown] = fitted(wide, narrow, 80)
    assert len(shown.columns) == 8 and "(1 of" not in shown.title
    lines = on_screen(shown, 80)
    assert max(map(len, lines)) <= 80 and any("75.0" in line for line in lines)
    assert not any(line.endswith("…") for line in lines)
    assert fitted(wide, narrow, 300) == [wide]
    split = fitted(wide, narrow, 40)
    assert len(split) > 1 and [len(piece.groups) for piece in split] == [len(piece.columns) - 1 for piece in split]
    marked = {(piece.rows[at][0], piece.rows[at][to]) for piece in split for at, to in piece.best}
    assert marked == {(narrow.rows[at][0], narrow.rows[at][to]) for at, to in narrow.best}


def on_screen(table: Table, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table.rich())
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined,no-any-return]


def test_a_benchmark_of_seven_columns_does_too(tmp_path: Path) -> None:
    text = FILE.replace("[linf:8/255]", "[linf:8/255, linf:4/255, linf:2/255]").partition("reference:")[0]
    bench = made(tmp_path, text)
    [table] = [each for each in bench_tables(bench, 80) if each.title.startswith("A title | linf")]
    assert len(table.columns) == 8
    assert max(map(len, on_screen(table, 80))) <= 80
    latex = bench_tables(bench, intervals=False)[0].latex()
    assert latex.count("\\cmidrule(lr)") == 2 and "\\textbf{66.0}" not in latex and "\\textbf{91.0}" in latex
    assert "(" not in "".join(line for line in latex.splitlines() if line.startswith("tiny-vit &"))


def test_a_worst_case_over_fewer_attacks_is_no_number_of_the_table(results: list[Result]) -> None:
    fewer = [r for r in results if (r.job.model, r.job.attack) != ("b", "auto")]
    table, _ = run_grid(fewer, ["model"], ["threat", "attack"], intervals=False)
    at = [number for number, head in enumerate(table.columns) if "worst case" in head]
    worst = {row[0]: [row[place] for place in at] for row in table.rows}
    assert worst["b"] == ["", ""] and all(all(cells) for model, cells in worst.items() if model != "b")


def test_heads_break_where_words_do() -> None:
    assert (
        wrapped("linf:8/255 pgd(steps=20)", 8) == "linf:\n8/255\npgd(\nsteps=20\n)"
        or max(map(len, wrapped("linf:8/255 pgd(steps=20)", 8).splitlines())) <= 8
    )
    assert "".join(wrapped("averyveryverylongname", 8).split("\n")) == "averyveryverylongname"
    assert wrapped("clean", 8) == "clean"


def test_the_command(here: Here, results: list[Result]) -> None:
    latex = here("runs", "table", "--format", "latex", "--no-intervals")
    assert latex.returncode == 0 and "\\multicolumn{4}{c}" in latex.stdout
    assert "b " in here("runs", "table", "--rows", "model,threat", "--columns", "attack").stdout
    assert "each once" in here("runs", "table", "--rows", "attack").stderr
    assert "no finished run is left" in here("runs", "table", "--model", "nothing").stderr


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no LaTeX here")
def test_latex_sets_the_table_in_the_width_of_a_page(results: list[Result], tmp_path: Path) -> None:
    wide, _ = run_grid(results, ["model"], ["threat", "attack"])
    rows, _ = run_grid(results, ["model", "threat"], ["attack"], intervals=False)
    head = "\\documentclass[twocolumn]{article}\\usepackage{booktabs,graphicx}\\begin{document}x\n"
    (tmp_path / "t.tex").write_text(head + wide.latex() + rows.latex() + "\\end{document}")
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout
