"""Values in a notebook: tables by themselves, short representations, and a notebook that is executed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import vitattack
from tests.conftest import tiny_vit, toy_pictures
from tests.records.making_runs import make_run
from vitattack.core.errors import UsageError
from vitattack.core.notebook import NotebookBar, counting, in_notebook
from vitattack.core.table import Table

X = toy_pictures(6)
with torch.no_grad():
    Y = tiny_vit()(X).argmax(1)
SETTINGS: dict[str, Any] = {"data": (X, Y), "threads": 1, "batch_size": 3}


@pytest.fixture(scope="module")
def evaluation() -> vitattack.Evaluation:
    return vitattack.evaluate(tiny_vit().model, ["pgd(steps=2)", "fgsm"], threat="linf:0.002", **SETTINGS)


def test_representations_fit_on_a_line_or_two_and_hold_no_digest(evaluation: vitattack.Evaluation) -> None:
    text = repr(evaluation)
    assert text.startswith("Evaluation(VisionTransformer, pgd(steps=2), fgsm, linf:0.002, tensors:") and len(text) < 200
    assert "n=6, clean 100.0 %, robust" in text and "sha" not in text and evaluation.job.weights not in text
    assert repr(evaluation["fgsm"]).startswith("Result(VisionTransformer, fgsm, linf:0.002, n=6, clean 100.0 %")
    diagnosis = vitattack.diagnose(tiny_vit().model, data=(X, Y), threads=1)
    assert repr(diagnosis).startswith("Diagnosis(VisionTransformer, tensors:") and len(repr(diagnosis)) < 150
    assert "<table>" in diagnosis._repr_html_() and "attention softmaxes" in diagnosis._repr_html_()
    compared = vitattack.compare(evaluation["fgsm"], evaluation["pgd(steps=2)"])
    assert repr(compared).startswith("Comparison(VisionTransformer fgsm against VisionTransformer pgd(steps=2)")


def test_results_by_name(evaluation: vitattack.Evaluation) -> None:
    assert evaluation["pgd(steps=2)"] is evaluation[0] is next(iter(evaluation))
    assert evaluation["fgsm", "linf:0.002"] is evaluation.results[1]
    with pytest.raises(UsageError, match=r"unknown attack 'fgms': did you mean fgsm\?"):
        evaluation["fgms"]
    with pytest.raises(UsageError, match="unknown threat 'l2:1'"):
        evaluation["fgsm", "l2:1"]
    curve = vitattack.evaluate(tiny_vit().model, "fgsm", threat=["linf:0.001", "linf:0.002"], **SETTINGS)
    with pytest.raises(UsageError, match=r"'fgsm' ran under 2 budgets: write e\['fgsm', 'linf:0.001'\]"):
        curve["fgsm"]
    assert curve["fgsm", "linf:0.002"].job.threat == "linf:0.002"


def test_html_holds_the_table_and_nothing_of_it_is_markup(evaluation: vitattack.Evaluation) -> None:
    html = evaluation._repr_html_()
    assert html.count("<tr>") == 5 and "worst case" in html and "pgd(steps=2)" in html
    hostile = Table("<script>", ["a\u202e"], [['"><img src=x onerror=alert(1)>']], ["\x1b[31m&"]).html()
    assert "<script>" not in hostile and "<img" not in hostile and "\x1b" not in hostile and "\u202e" not in hostile


def test_stored_runs_in_python(tmp_path: Path) -> None:
    make_run(tmp_path, "rrff", "a")
    make_run(tmp_path, "rfff", "b", doubts=["hm"])
    make_run(tmp_path, "rfff", "c", stop_after=0)
    runs = vitattack.runs(tmp_path)
    assert len(runs) == 3 and repr(runs) == f"Runs({str(tmp_path)!r}, 3 of 3)" and "<table>" in runs._repr_html_()
    frame = runs.frame().set_index("model")
    assert (
        frame.loc["b", "robust"] == 0.25 and frame.loc["c", "state"] == "unfinished" and frame.loc["b", "doubts"] == 1
    )
    [b] = vitattack.runs(tmp_path, model="b")
    assert runs[b.key[:8]] == b and b.evaluation.worst_case.correct == 1 and "robust 25.0%" in repr(b)
    compared = vitattack.compare("a", b, out=tmp_path)
    assert compared.rows[0].contrasts[0].lost == (1,) and "McNemar" in compared._repr_html_()
    with pytest.raises(UsageError, match="needs two sides"):
        vitattack.compare("a", out=tmp_path)


def test_bars_are_for_notebooks_alone() -> None:
    assert not in_notebook()
    with counting("work", None) as count:
        count(1, 2)
    bar = NotebookBar("<b>")
    bar._done, bar._total = 1, 2
    assert bar._repr_html_().startswith('<progress value="1" max="2"></progress> &lt;b&gt;: 1 of 2')


CELLS = (
    "import torch, vitattack\nfrom tests.report.test_notebook import X, Y, SETTINGS\nfrom tests.conftest import tiny_vit",
    "settings = {**SETTINGS, 'threat': 'linf:0.002', 'out': 'runs', 'save_adv': True}",
    "e = vitattack.evaluate(tiny_vit().model, ['fgsm', 'pgd(steps=2)'], **settings)",
    "e",
    "e['fgsm']",
    "e.frame().shape",
    "vitattack.runs('runs')",
    "vitattack.compare(e['fgsm'], e['pgd(steps=2)'])",
    "vitattack.diagnose(tiny_vit().model, data=(X, Y), threads=1)",
    "e['fgsm'].examples[3].x_adv.shape",
)


@pytest.mark.slow
def test_a_notebook_runs_and_shows_tables_and_bars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    root = Path(__file__).resolve().parents[2]
    monkeypatch.setenv("PYTHONPATH", str(root))
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    messages: list[dict[str, Any]] = []

    class Client(nbclient.NotebookClient):
        def process_message(self, message: dict[str, Any], *rest: Any) -> Any:
            messages.append(message)
            return super().process_message(message, *rest)

    Client(book, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = dict(zip(CELLS, map(_html, book.cells), strict=True))
    plain = {
        cell: [out.get("data", {}).get("text/plain", "") for out in each.outputs]
        for cell, each in zip(CELLS, book.cells, strict=True)
    }
    assert "worst case" in shown["e"] and shown["e"].count("<table>") == 1 and plain["e"][-1].startswith("Evaluation(")
    assert "fgsm" in shown["e['fgsm']"] and "2 runs" in shown["vitattack.runs('runs')"]
    assert "Newcombe" in shown[CELLS[7]] and "verdict" in shown[CELLS[8]]
    assert plain[CELLS[5]][0].startswith("(12, ") and plain[CELLS[-1]] == ["(3, 32, 32)"]
    told = [out for cell in book.cells for out in cell.outputs if out.output_type in ("error", "stream")]
    assert [
        out for out in told if "tqdm" not in out.get("text", "")
    ] == []  # which misses widgets when timm is imported
    bars = [m for m in messages if "<progress" in json.dumps(m.get("content", {}).get("data", {}), default=str)]
    assert any("fgsm (1 of 2)" in str(bar["content"]["data"]) for bar in bars)
    assert not any("<progress" in html for html in shown.values())  # gone when the work is done


def _html(cell: Any) -> str:
    return "".join(out.get("data", {}).get("text/html", "") for out in cell.outputs)


def test_an_evaluation_draws_itself(evaluation: vitattack.Evaluation, tmp_path: Path) -> None:
    plot = evaluation.plot("passes")
    assert repr(plot) == "Plot(passes, 1 panel)" and plot._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    plot.save(tmp_path / "passes.pdf")
    assert (tmp_path / "passes.pdf").read_bytes().startswith(b"%PDF")
    for kind, message in [("pases", "did you mean passes"), ("spatial", "kinds it has: accuracy, passes")]:
        with pytest.raises(UsageError, match=message):
            evaluation.plot(kind)
