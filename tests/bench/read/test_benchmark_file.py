"""Reading of benchmark files: their meaning, and mistakes reported with line and fix."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vitattack.bench.cells import cells
from vitattack.bench.read.benchmark_file import read_benchmark
from vitattack.bench.schema import Benchmark
from vitattack.core.errors import UsageError

WHOLE = """\
schema: 1
title: Two models
source: "Somebody, 2024, Table 1"
data: cifar10-demo
threats: [linf:8/255]
seeds: [0]
models:
  - tiny-vit
  - {model: tiny-vit-standard, label: plain, batch_size: 32}
  - {label: theirs, published: true}
attacks:
  - pgd
  - {attack: "gama(steps=50)", label: GAMA}
overrides:
  - {models: "tiny-*", attacks: GAMA, set: {limit: 4, batch_size: 8}}
skip:
  - {models: plain, attacks: GAMA}
reference:
  - {model: tiny-vit, attack: pgd, value: 45.5, n: 10000}
  - {model: theirs, attack: GAMA, threat: linf:8/255, value: 51, source: elsewhere}
  - {model: theirs, attack: clean, value: 80.1}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "b.yaml"
    path.write_text(text)
    return path


@pytest.fixture
def whole(tmp_path: Path) -> Benchmark:
    return read_benchmark(str(write(tmp_path, WHOLE)))


def test_a_file_is_its_cells(whole: Benchmark) -> None:
    found = cells(whole)
    assert [cell.name for cell in found] == [
        "tiny-vit/pgd/linf:8/255/0",
        "tiny-vit/GAMA/linf:8/255/0",
        "plain/pgd/linf:8/255/0",
        "theirs/pgd/linf:8/255/0",
        "theirs/GAMA/linf:8/255/0",
    ]
    assert [cell.runnable for cell in found] == [True, True, True, False, False]
    assert [cell.settings.batch_size for cell in found[:3]] == [64, 8, 32]  # defaults, override, row
    assert [cell.settings.limit for cell in found[:3]] == [None, 4, None]
    assert found[1].attack == "gama(steps=50)" and found[2].model == "tiny-vit-standard"


def test_published_numbers_find_their_cells(whole: Benchmark) -> None:
    first = cells(whole)[0].published
    assert first is not None and (first.value, first.n, first.source) == (45.5, 10000, "Somebody, 2024, Table 1")
    last = cells(whole)[4].published
    assert last is not None and (last.value, last.n, last.source) == (51.0, None, "elsewhere")
    clean = whole.published("theirs", "clean", "linf:8/255")
    assert clean is not None and clean.value == 80.1
    assert whole.published("plain", "clean", "linf:8/255") is None


def test_only_and_skip_are_wildcards_over_names_and_parts(whole: Benchmark) -> None:
    names = lambda **kw: [cell.name for cell in cells(whole, **kw)]  # noqa: E731
    assert names(only=["pgd"]) == [n for n in names() if "/pgd/" in n]
    assert names(only=["theirs/*"]) == [n for n in names() if n.startswith("theirs")]
    assert names(skip=["gama*", "theirs"]) == ["tiny-vit/pgd/linf:8/255/0", "plain/pgd/linf:8/255/0"]
    with pytest.raises(UsageError, match=r"--only 'nothing' names no cell: cells are like 'tiny-vit/pgd"):
        cells(whole, only=["nothing"])
    with pytest.raises(UsageError, match="leave no cell"):
        cells(whole, only=["pgd"], skip=["pgd"])


def test_wildcards_name_the_models_of_the_zoo_that_fit_the_data(tmp_path: Path) -> None:
    text = WHOLE.partition("overrides:")[0].replace(
        "- {model: tiny-vit-standard, label: plain, batch_size: 32}", "- 'tiny-*'"
    )
    found = read_benchmark(str(write(tmp_path, text.replace("  - tiny-vit\n", ""))))
    assert {m.text for m in found.models} >= {"tiny-vit", "tiny-vit-standard", "tiny-cnn-standard"}
    everything = read_benchmark(str(write(tmp_path, text.replace("  - tiny-vit\n", "").replace("tiny-*", "*"))))
    assert not any("imagenet" in m.text for m in everything.models)


ONE_ATTACK = """\
schema: 1
title: One attack
data: cifar10-demo
threats: ["linf:4/255,8/255"]
models: [tiny-vit, tiny-cnn-standard]
attacks: [pgd]
"""


def test_several_budgets_and_axes(tmp_path: Path) -> None:
    text = WHOLE.replace("[linf:8/255]", "['linf:1/255,2/255', l2:0.5]").partition("reference:")[0]
    found = read_benchmark(str(write(tmp_path, text)))
    assert found.threats == ("linf:1/255", "linf:2/255", "l2:0.5")
    assert (found.rows, found.columns) == (("model",), ("attack", "threat"))
    turned = read_benchmark(str(write(tmp_path, text + "rows: [attack]\ncolumns: [model]\n")))
    assert (turned.rows, turned.columns) == (("attack",), ("model", "threat"))  # what nobody names goes across
    across = read_benchmark(str(write(tmp_path, text + "columns: [model]\n")))
    assert (across.rows, across.columns) == (("attack",), ("model", "threat"))
    # clean numbers stand beside those of the only attack, and not in their place
    for axes, columns in (("[threat]\ncolumns: [model]", "model"), ("[model]\ncolumns: [threat]", "threat")):
        alone = read_benchmark(str(write(tmp_path, ONE_ATTACK + f"rows: {axes}\n")))
        assert len(alone.attacks) == 1 and alone.columns == (columns, "attack")
    seeds = read_benchmark(str(write(tmp_path, text.replace("seeds: [0]", "seeds: [0, 1]"))))
    assert seeds.columns == ("attack", "threat", "seed") and len(cells(seeds)) == 2 * len(cells(found))


@pytest.mark.parametrize(
    "shape", ["rows: [threat]\ncolumns: [model]\n", "columns: [threat]\n", "rows: [model]\ncolumns: [seed]\n"]
)
def test_one_attack_and_the_clean_accuracy_have_places_of_their_own(tmp_path: Path, shape: str) -> None:
    found = read_benchmark(str(write(tmp_path, TWO_NUMBERS + shape)))
    assert "attack" in (*found.rows, *found.columns)


def test_a_file_that_skips_everything_says_so(tmp_path: Path) -> None:
    found = read_benchmark(str(write(tmp_path, TWO_NUMBERS + "skip: [{models: '*'}]\n")))
    for only in ([], ["pgd"]):
        with pytest.raises(UsageError, match=r"b\.yaml:7: skip leaves no cell: drop an entry of it"):
            cells(found, only)


TWO_NUMBERS = (
    "schema: 1\ntitle: One attack\ndata: cifar10-demo\nthreats: [linf:8/255]\nmodels: [tiny-vit]\nattacks: [pgd]\n"
)


def lines(number: int, old: str, new: str, line: int, said: str) -> pytest.ParameterSet:  # type: ignore[name-defined]
    return pytest.param(old, new, line, said, id=f"{number:02d}")


BROKEN = [
    lines(1, "schema: 1\n", "", 1, "begin with schema: 1"),
    lines(2, "schema: 1", "schema: 2", 1, "begin with schema: 1"),
    lines(3, "title: Two models", "titel: Two models", 2, "unknown key 'titel': did you mean title?"),
    lines(4, "title: Two models\n", "", 1, "no title: add title: WORDS"),
    lines(5, "cifar10-demo\n", "cifar10-dmo[:8]\n", 4, "did you mean cifar10-demo"),
    lines(6, "cifar10-demo\n", "cifar10-demo[8]\n", 4, "write :1000 for the first 1000"),
    lines(7, "cifar10-demo\n", "cifar10-demo@crop224\n", 4, "is used as it is: drop the transform"),
    lines(8, "[linf:8/255]", "[linf:8]", 5, "write linf:8/255 if you mean 8-bit steps"),
    lines(9, "[linf:8/255]", "[linf:8/255, linf:8/255]", 5, "stands twice: keep one"),
    lines(10, "[linf:8/255]", "[]", 5, "name at least one"),
    lines(11, "seeds: [0]", "seeds: [-1]", 6, "a seed is a whole number from 0 on"),
    lines(12, "seeds: [0]", "seeds: [0, 0]", 6, "the seed 0 stands twice"),
    lines(13, "- tiny-vit\n", "- tiny-vot\n", 8, "did you mean tiny-vit"),
    lines(14, "- tiny-vit\n", "- 'giant-*'\n", 8, "no model of the zoo for this data fits 'giant-*'"),
    lines(15, "- tiny-vit\n", "- timm:resnet50.a1_in1k\n", 8, "has 1000 classes, the data has 10"),
    lines(16, "- tiny-vit\n", "- tiny-vit-standard\n  - {model: tiny-vit, label: plain}\n", 10, "stands twice, first in line 9"),
    lines(17, "batch_size: 32", "batch_size: 0", 9, "batch_size is a whole number from 1 on, not 0"),
    lines(18, "batch_size: 32", "batchsize: 32", 9, "did you mean batch_size"),
    lines(19, "batch_size: 32", "arch: vit_tiny", 9, "describes a checkpoint file, 'tiny-vit-standard' is none"),
    lines(20, "- tiny-vit\n", "- mine.safetensors\n", 8, "'mine.safetensors' does not exist"),
    lines(21, "{label: theirs, published: true}", "{label: theirs}", 10, "a model needs its name"),
    lines(22, "- pgd\n", "- pdg\n", 12, "did you mean pgd"),
    lines(23, "gama(steps=50)", "gama(step_size=2)", 13, "unknown option of gama 'step_size'"),
    lines(24, "gama(steps=50)", "gama(steps=many)", 13, "takes a whole number, not many"),
    lines(25, "gama(steps=50)", "gama(eps=8/255)", 13, "the budget is the threat's"),
    lines(26, "gama(steps=50)", "worst(pgd, gama(steps=50)", 13, "do not close"),
    lines(27, "gama(steps=50)", "cw_l2", 13, "cw_l2 is not defined for linf threats: drop it, or add skip"),
    lines(28, "- pgd\n", "- clean\n", 12, "clean accuracy is measured in any case"),
    lines(29, "set: {limit: 4, batch_size: 8}", "set: {limits: 4}", 15, "did you mean limit?"),
    lines(30, 'models: "tiny-*"', 'models: "tony-*"', 15, "unknown model 'tony-*'"),
    lines(67, "- tiny-vit\n", "- s002/PGD-AT/cifar10\n", 8, "was renamed: write aas2024/PGD-AT/cifar10"),
    lines(31, "{models: plain, attacks: GAMA}", "{models: plain, attack: GAMA}", 17, "did you mean attacks"),
    lines(32, "value: 45.5", "value: 145.5", 19, "value is a number from 0 to 100, not 145.5"),
    lines(33, "{model: tiny-vit, attack: pgd", "{model: tiny-vat, attack: pgd", 19, "did you mean tiny-vit"),
    lines(34, "attack: GAMA, threat: linf:8/255", "attack: GAMA, threat: linf:4/255", 20, "unknown threat of this file"),
    lines(35, "value: 45.5, ", "", 19, "a reference has no value"),
    lines(36, "model: theirs, attack: clean", "model: tiny-vit, attack: pgd", 21, "stands twice, first in line 19"),
    lines(37, 'source: "Somebody, 2024, Table 1"\n', "", 18, "needs its source"),
    lines(38, "seeds: [0]", "seeds: [0]\ntitle: again", 7, "the key 'title' stands twice, first in line 2"),
    lines(39, "seeds: [0]", "seeds: !!python/object/apply:os.system [ls]", 6, "is refused: write the plain value"),
    lines(40, "seeds: [0]", "seeds: [0", 7, "not readable YAML"),
    lines(41, "seeds: [0]", "seeds: *nobody", 6, "not readable YAML"),
    lines(42, "seeds: [0]", "seeds: " + "[" * 5000, 6, "nested too deeply"),
    lines(43, "seeds: [0]", "seeds: " + "[" * 20 + "]" * 20, 6, "nested too deeply"),
    lines(44, "title: Two models", "title: [Two, models]", 2, "title is a text, not a list"),
    lines(45, "seeds: [0]", "rows: [modle]", 6, "did you mean model"),
    lines(46, "seeds: [0]", "rows: [model]\ncolumns: [model]", 7, "stands twice in rows and columns"),
    lines(47, "seeds: [0]", "defaults: {threads: 0}", 6, "threads is a whole number from 1 on"),
    lines(48, "seeds: [0]", "defaults: {transform: upside-down}", 6, "unknown transform 'upside-down'"),
    lines(49, "title: Two models", 'title: "Two\\e[31m models"', 2, "holds control characters"),
    lines(50, "data: cifar10-demo\n", "data: cifar10-demo[:8]\n", 15, "narrowed twice"),
    lines(51, "cifar10-demo\n", "cifar10-demo[:8]\nlimit: 2\n", 4, "narrowed twice"),
    lines(52, "batch_size: 32", "transform: crop224", 9, "is used as it is: drop the transform"),
    lines(53, "- pgd\n", "- {label: clean, published: true}\n", 12, "clean accuracy is measured in any case"),
    lines(61, "seeds: [0]", "notes: [see, there]", 6, "notes is a text, not a list"),
    lines(62, "seeds: [0]", 'notes: "\\e[31mred"', 6, "holds control characters"),
    lines(58, "{models: plain, attacks: GAMA}", "{models: [], attacks: GAMA}", 17, "models is an empty list"),
    lines(59, "{models: plain, attacks: GAMA}", "{models: tiny-vit, attacks: pgd}", 19, "tiny-vit/pgd/linf:8/255: drop one"),
    lines(60, "{models: plain, attacks: GAMA}", "{models: theirs}", 20, "skip leaves out the cell of this reference"),
    lines(54, "seeds: [0]", "seeds: [0x" + "f" * 5000 + "]", 6, "is out of any range"),
    lines(68, "seeds: [0]", "seeds: [010]", 6, "'010' is 8 in YAML 1.1: write 10, or quotes around a text"),
    lines(69, "batch_size: 32", "batch_size: 1:30", 9, "'1:30' is 90 in YAML 1.1: write '1:30' in quotes, or the number"),
    lines(70, "seeds: [0]", "seeds: [-0_12]", 6, "'-0_12' is -10 in YAML 1.1: write -12"),
    lines(71, "value: 45.5", "value: 1:30.5", 19, "'1:30.5' is 90.5 in YAML 1.1"),
    lines(72, "schema: 1", "schema: true", 1, "begin with schema: 1"),
    lines(73, "schema: 1", "schema: 1.0", 1, "begin with schema: 1"),
    lines(55, "cifar10-demo\n", "npz:" + "a" * 5000 + "\n", 4, "cannot be a path"),
    lines(56, "- tiny-vit\n", "- " + "a" * 5000 + ".safetensors\n", 8, "does not exist"),
    lines(57, "- pgd\n", "- " + "eot+" * 400 + "pgd\n", 12, "nests attacks too deeply"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "line", "said"), BROKEN)
def test_a_mistake_is_told_with_its_line_and_the_fix(tmp_path: Path, old: str, new: str, line: int, said: str) -> None:
    assert WHOLE.count(old) >= 1
    path = write(tmp_path, WHOLE.replace(old, new, 1))
    with pytest.raises(UsageError) as error:
        read_benchmark(str(path))
    message = str(error.value)
    assert message.startswith(f"{path}:{line}: "), message
    assert said in message and "\n" not in message and message.isprintable()
    assert ": " in message.removeprefix(f"{path}:{line}: ")  # the cause, then the fix


def test_aliases_that_swarm_are_refused(tmp_path: Path) -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
    with pytest.raises(UsageError, match=r"b\.yaml:\d+: the aliases of this file stand for more than"):
        read_benchmark(str(write(tmp_path, bomb)))


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"larger than 256 KB"):
        read_benchmark(str(write(tmp_path, "# " + "x" * 300_000)))
    with pytest.raises(UsageError, match="check the path"):
        read_benchmark(str(tmp_path / "none.yaml"))
    with pytest.raises(UsageError, match="check the path"):
        read_benchmark(str(tmp_path.with_suffix(".yaml")))
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(UsageError, match="it is no file"):  # and does not wait for somebody to write
        read_benchmark(str(tmp_path / "pipe.yaml"))
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not text"):
        read_benchmark(str(tmp_path / "b.yaml"))
    with pytest.raises(UsageError, match="unknown benchmark 'dmeo': did you mean demo"):
        read_benchmark("dmeo")
    with pytest.raises(UsageError, match=r"b\.yaml:1: a benchmark is keys and values"):
        read_benchmark(str(write(tmp_path, "- pgd\n")))
    with pytest.raises(UsageError, match=r"b\.yaml:1: "):
        read_benchmark(str(write(tmp_path, "")))


# What is wrong with the options of an attack, or with its threat, is known to the attack alone, which imports torch.
OF_ATTACKS = ("23", "24", "25", "27")


def test_each_is_refused_in_under_a_second_and_without_torch(tmp_path: Path) -> None:
    paths = {True: [], False: []}
    for number, broken in enumerate(BROKEN):
        old, new, _, _ = broken.values
        path = tmp_path / f"b{number}.yaml"
        path.write_text(WHOLE.replace(str(old), str(new), 1))
        paths[broken.id in OF_ATTACKS].append(str(path))
    assert len(paths[True]) == len(OF_ATTACKS)
    code = (
        "import sys, time\n"
        "from vitattack.bench.read.benchmark_file import read_benchmark\n"
        "from vitattack.core.errors import UsageError\n"
        "worst = 0.0\n"
        "for path in sys.argv[1:]:\n"
        "    if path == 'attacks':\n"
        "        assert 'torch' not in sys.modules and 'timm' not in sys.modules\n"
        "        from vitattack.attacks import attack_text\n"
        "        attack_text.check_attack_text('pgd')\n"
        "        continue\n"
        "    began = time.process_time()\n"
        "    try:\n"
        "        read_benchmark(path)\n"
        "    except UsageError:\n"
        "        worst = max(worst, time.process_time() - began)\n"
        "    else:\n"
        "        sys.exit(path)\n"
        "assert 'timm' not in sys.modules\n"
        "assert worst < 1, worst\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *paths[False], "attacks", *paths[True]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
