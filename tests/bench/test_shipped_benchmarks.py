"""Files in benchmarks/: all readable, with the published numbers that the zoo has from the same sources."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from vitattack.bench.cells import cells
from vitattack.bench.options import BenchOptions
from vitattack.bench.plan.cost import plan_benchmark
from vitattack.bench.read.benchmark_file import read_benchmark
from vitattack.bench.schema import CLEAN
from vitattack.core.assets import ASSETS
from vitattack.models.zoo.catalogue import zoo_entries

read = cache(read_benchmark)
FILES = sorted((ASSETS / "benchmarks").glob("*.yaml"))
# Where a paper contradicts itself or the repository the zoo quotes: (file, row, attack, in the paper, in the zoo).
CONTRADICTIONS = {
    ("aas-table5-cifar100", "XCiT-S12", "AA", 32.17, 32.19),
    ("light-table3", "GELU ResNet-50", "AA", 35.53, 35.51),
    ("light-table11", "GELU ResNet-50", "AA", 17.14, 17.15),
    ("vit-vs-wrn-table1-cifar10-l2", "WRN-70-16, Wang 2023", "AA", 84.97, 84.86),
    ("vit-vs-wrn-table1-cifar10-linf", "ViT-L/2", "AA", 74.97, 74.94),
    ("vit-vs-wrn-table4", "ViT-L/2, 10000 epochs", "AA", 74.97, 74.94),
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_reads_and_shows_every_number(path: Path):
    bench = read(path.stem)
    found = cells(bench)
    assert found and bench.source and bench.name == path.stem
    quoted = [cell.published for cell in found if cell.published is not None]
    clean = [reference for reference in bench.reference if reference.attack == CLEAN]
    assert len(quoted) == len(bench.reference) - len(clean)  # no number without a cell
    assert all(0 <= reference.value <= 100 and reference.source for reference in bench.reference)
    labels = {reference.model for reference in bench.reference}
    assert all(cell.runnable or cell.label in labels or cell.attack_label for cell in found)


def test_the_papers_are_there():
    names = {path.stem for path in FILES}
    wanted = {
        *(f"aas-table{n}-{data}" for n in (1, 2, 3, 5) for data in ("cifar10", "cifar100")),
        *("aas-table3-imagenet100", "aas-table4", "aas-figure3", "aas-figure4", "aas-figure5"),
        *(f"light-table{n}" for n in ("2a", "2b", "2c", "2d", 3, "4a", "4b", 5, 6, "7b", "7c", "7d", 8, 9, 10, 11)),
        *("light-table7a-caltech101", "light-table7a-flowers", "light-figure3"),
        *(f"vit-vs-wrn-table{n}" for n in (2, 3, 4, 5)),
        *(f"vit-vs-wrn-table{n}-{t}" for n in (1, 6) for t in ("cifar10-linf", "cifar10-l2", "cifar100")),
        *(f"bhojanapalli-{part}" for part in ("figure3", "spatial", "table2", "table4", "table5")),
        *(f"bhojanapalli-table3-{part}" for part in ("clean", "a", "c", "r", "cue-conflict")),
        *(f"tora-table{n}{part}" for n in (1, 2, 3) for part in ("", "-a", "-r")),
        *("robustbench-imagenet", "robustbench-cifar10", "robustbench-cifar100"),
        *("demo", "masking", "transfer", "transferattack", "spatial", "clip-zeroshot"),
    }
    assert names == wanted


def test_published_numbers_are_those_of_the_zoo():
    """Typed from papers here and from repositories there, so that a slip in one of them shows."""
    zoo, compared, contradictions = zoo_entries(), 0, set()
    for path in FILES:
        if path.stem.startswith(("demo", "tora", "bhojanapalli")):  # other images, other decimals
            continue
        bench = read(path.stem)
        for model in bench.models:
            entry = zoo.get(model.text)
            if entry is None:
                continue
            for reference in bench.reference:
                if reference.model != model.label or reference.attack not in (CLEAN, "AA"):
                    continue
                metric = "clean" if reference.attack == CLEAN else "robust"
                if metric == "robust" and reference.threat != entry.threat:
                    continue
                known = [
                    said.value
                    for said in entry.reported
                    if said.metric == metric
                    and (metric == "clean" or "AutoAttack" in said.protocol)
                    and (said.n == reference.n or reference.n is None)
                ]
                if known:
                    compared += 1
                    if min(abs(value - reference.value) for value in known) > 0.0051:
                        contradictions.add((path.stem, model.label, reference.attack, reference.value, known[0]))
    assert contradictions == CONTRADICTIONS
    assert compared > 100


def test_every_reported_number_of_unpublished_models_is_quoted():
    """Numbers of models without weights come from tables that are files here."""
    quoted: dict[str, set[float]] = {}
    for path in FILES:
        bench = read(path.stem)
        for model in bench.models:
            values = {reference.value for reference in bench.reference if reference.model == model.label}
            quoted.setdefault(model.text, set()).update(values)
    for entry in zoo_entries().values():
        if entry.id.split("/")[0] in ("vitwrn2025", "aas2024", "tora2023"):
            twin = f"rb/Debenedetti2022Light_XCiT-S12/{entry.dataset}" if "XCiT-S12/" in entry.id else entry.id
            assert {said.value for said in entry.reported if said.metric != "mce"} <= quoted[twin] | {74.94}, entry.id


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_has_a_plan(path: Path, tmp_path: Path):
    found = plan_benchmark(read(path.stem), BenchOptions(store=tmp_path), 1e13)
    assert len(found.rows) == len(cells(read(path.stem)))
    assert found.to_run  # something of it can be measured here
    for row in found.to_run:
        assert row.n and row.passes and row.passes.forwards >= 2, row.cell.name
        assert row.flops and row.hours, row.cell.name


def test_every_attack_can_be_built():
    from vitattack.attacks import attack_text
    from vitattack.threats.base import parse_threat

    found = {(c.attack, c.threat) for path in FILES for c in cells(read(path.stem)) if c.runnable}
    assert len(found) > 100
    for attack, threat in found:
        attack_text.build(attack_text.canonical(attack), parse_threat(threat))


def test_the_file_of_the_page_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    page = Path(__file__).parents[2] / "docs" / "bench.md"
    made = tmp_path / "page.yaml"
    made.write_text(page.read_text().split("```yaml\n")[1].split("```")[0])
    (tmp_path / "mine.safetensors").touch()
    monkeypatch.chdir(tmp_path)
    bench = read_benchmark(str(made))
    assert {"XCiT-S12", "mine", "tiny-vit"} <= {model.label for model in bench.models}
