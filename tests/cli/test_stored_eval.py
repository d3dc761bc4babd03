"""Finished runs printed from their store: the same bytes as when computed, and never those of another run."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vitattack.cli import eval as eval_command

from tests.cli.conftest import Here
from vitattack.attacks.aas import controls
from vitattack.core.assets import EMBEDDED
from vitattack.records import run_index

evaluate_module = importlib.import_module("vitattack.evaluation.evaluate")  # `evaluation.evaluate` is the function
prepare_module = importlib.import_module("vitattack.evaluation.prepare")

SMALL = ("--limit", "6", "--threads", "1", "--batch-size", "3")
RUN = ("eval", "tiny-vit", "pgd(steps=2)", *SMALL)
Seen = list[bool]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VITATTACK_HOME", str(tmp_path / "home"))


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """For each command so far, whether it was answered from the index."""
    seen: Seen = []
    find = run_index.RunIndex.find

    def watched(self: run_index.RunIndex, request: dict[str, object]) -> object:
        finding = find(self, request)
        seen.append(finding is not None)
        return finding

    monkeypatch.setattr(run_index.RunIndex, "find", watched)
    return seen


@pytest.mark.parametrize(
    "words",
    [
        ("pgd(steps=2)", "fgsm"),
        ("auto(passes=150)",),
        ("auto(steps=2, k=2, long=4)", "--limit", "1"),
        ("autoattack(steps=3, queries=5)", "--limit", "2"),
        ("worst(random, pgd(steps=2))", "--threat", "linf:1/255,2/255"),
        ("aas(pgd(steps=2), steps=1, restarts=1, calibration=4)", "pgd(steps=2)"),
        ("spatial(shifts=3, angles=3)", "--threat", "spatial:1px,1deg", "--limit", "1"),
        ("perceptual(pgd(steps=2), lpips=False)", "perceptual(fgsm, lpips=False)"),
        ("worst(fgsm, square(queries=20))", "--precision", "fp32"),
    ],
    ids=lambda words: words[0],
)
def test_the_index_prints_what_the_long_way_prints(
    here: Here, stored: Seen, tmp_path: Path, words: tuple[str, ...]
) -> None:
    command = ("eval", "tiny-vit", *SMALL, *words)
    assert here(*command, "--quiet").returncode == 0
    for form in ("--json", "--format=table"):
        shutil.rmtree(tmp_path / "runs" / run_index.FOLDER)
        slow = here(*command, form)
        quick = here(*command, form)
        assert quick.stdout == slow.stdout and quick.stderr == slow.stderr and "from the store" in quick.stderr
    assert stored == [False, *[False, True] * 2]


def test_controls_and_their_verdicts(here: Here, stored: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controls, "CONTROLS", ("fp64",))  # the others search for half a minute
    attack = "aas(pgd(steps=1), steps=1, restarts=1, calibration=4)"
    words = ("eval", "tiny-vit", attack, "--controls", "--quiet", "--limit", "4", "--threads", "1")
    assert here(*words).returncode == 0
    shutil.rmtree(tmp_path / "runs" / run_index.FOLDER)
    first, again, as_json = here(*words), here(*words), here(*words, "--json")
    assert stored == [False, False, True, True] and again.stdout == first.stdout and '"verdicts": [' in as_json.stdout


@pytest.mark.parametrize(
    "change",
    [
        ("--threads", "2"),
        ("--seed", "1"),
        ("--batch-size", "2"),
        ("--limit", "5"),
        ("--threat", "linf:4/255"),
        ("--fresh",),
        ("--device", "cpu"),
        ("--out", "elsewhere"),
    ],
    ids=" ".join,
)
def test_other_words_are_other_commands(here: Here, stored: Seen, change: tuple[str, ...]) -> None:
    here(*RUN)
    assert here(*RUN, *change).returncode == 0
    assert True not in stored


def _npz(path: Path, value: int) -> None:
    images = np.full((4, 32, 32, 3), value, dtype=np.uint8)
    np.savez(path, image=images, label=np.arange(4))


def test_another_data_file_is_another_run(here: Here, stored: Seen, tmp_path: Path) -> None:
    _npz(tmp_path / "mine.npz", 100)
    words = ("eval", "tiny-vit", "fgsm", "--data", "npz:mine.npz", "--threads", "1")
    first = here(*words)
    assert here(*words).stdout == first.stdout
    os.utime(tmp_path / "mine.npz", ns=(1, 1))  # touched, and still the same
    assert here(*words).stdout == first.stdout and stored == [False, True, True]
    _npz(tmp_path / "mine.npz", 200)
    here(*words)
    (tmp_path / "mine.npz").unlink()
    assert here(*words).returncode == 2 and stored == [False, True, True, False, False]


@pytest.mark.parametrize("restored", [False, True], ids=["replaced", "replaced and put back"])
def test_a_data_file_replaced_during_the_run_is_not_indexed(
    here: Here, stored: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restored: bool
) -> None:
    _npz(tmp_path / "mine.npz", 100)
    run = evaluate_module.run

    def replaced(*args: Any, **kwargs: Any) -> Any:
        result = run(*args, **kwargs)
        content = (tmp_path / "mine.npz").read_bytes()
        _npz(tmp_path / "other.npz", 200)
        (tmp_path / "other.npz").replace(tmp_path / "mine.npz")
        if restored:
            (tmp_path / "mine.npz").write_bytes(content)
        return result

    words = ("eval", "tiny-vit", "fgsm", "--data", "npz:mine.npz", "--threads", "1")
    with monkeypatch.context() as patch:
        patch.setattr(evaluate_module, "run", replaced)
        assert here(*words).returncode == 0
    assert here(*words).returncode == 0 and stored == [False, False]
    assert len(list(tmp_path.glob("runs/*/result.json"))) == (1 if restored else 2)


def test_a_checkpoint_replaced_while_it_was_read_is_not_indexed(
    here: Here, stored: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file, save_file

    from vitattack.models.zoo.catalogue import zoo_entries as entries

    entry = entries()["tiny-vit"]
    weights = load_file(EMBEDDED / str(entry.weights and entry.weights.file))
    save_file(weights, tmp_path / "mine.safetensors")
    load = prepare_module.load_model

    def replaced(*args: Any, **kwargs: Any) -> Any:
        loaded = load(*args, **kwargs)
        name = next(iter(weights))
        save_file({**weights, name: weights[name] + 0.01}, tmp_path / "mine.safetensors")
        return loaded

    words = ("eval", "mine.safetensors", "fgsm", "--arch", str(entry.arch), "--normalize", "cifar10", *SMALL)
    with monkeypatch.context() as patch:
        patch.setattr(prepare_module, "load_model", replaced)
        assert here(*words).returncode == 0
    assert here(*words).returncode == 0 and stored == [False, False]


def test_other_weights_are_another_model(here: Here, stored: Seen, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    from vitattack.models.zoo.catalogue import zoo_entries as entries

    entry = entries()["tiny-vit"]
    weights = load_file(EMBEDDED / str(entry.weights and entry.weights.file))
    arch = str(entry.arch)
    words = ("eval", "mine.safetensors", "fgsm", "--arch", arch, "--normalize", "cifar10", *SMALL)
    save_file(weights, tmp_path / "mine.safetensors")
    first = here(*words)
    assert first.returncode == 0 and here(*words).stdout == first.stdout and stored == [False, True]
    name = next(iter(weights))
    save_file({**weights, name: weights[name] + 0.01}, tmp_path / "mine.safetensors")
    assert here(*words).returncode == 0 and stored == [False, True, False]


Damage = Callable[[Path], None]


def _remove_run(store: Path) -> None:
    shutil.rmtree(next(store.glob("tiny-vit-*")))


def _damage_result(store: Path) -> None:
    path = next(store.glob("tiny-vit-*/result.json"))
    path.write_text(path.read_text()[:-40])


def _lose_a_record(store: Path) -> None:
    path = next(store.glob("tiny-vit-*/samples.jsonl"))
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def _damage_index(store: Path) -> None:
    next((store / run_index.FOLDER).iterdir()).write_text('{"jobs": 3, "files": {}, "remarks": []}')


def _tear_index(store: Path) -> None:
    next((store / run_index.FOLDER).iterdir()).write_text('{"jobs": [')


def _garble_index(store: Path) -> None:
    path = next((store / run_index.FOLDER).iterdir())
    path.write_bytes(path.read_bytes().replace(b"jobs", b"job\xf3"))


def _remove_index(store: Path) -> None:
    shutil.rmtree(store / run_index.FOLDER)


@pytest.mark.parametrize(
    "damage", [_remove_run, _damage_result, _lose_a_record, _damage_index, _tear_index, _garble_index, _remove_index]
)
def test_what_is_damaged_is_run_or_read_the_long_way(here: Here, stored: Seen, tmp_path: Path, damage: Damage) -> None:
    first = here(*RUN, "--format", "csv")
    damage(tmp_path / "runs")
    again = here(*RUN, "--format", "csv")
    assert again.returncode == 0 and again.stdout.split(",fwd")[0] == first.stdout.split(",fwd")[0]
    assert here(*RUN).returncode == 0 and stored == [False, False, True]


def test_other_code_and_other_places_are_asked_anew(
    here: Here, stored: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here(*RUN, "--out", str(tmp_path / "runs"))
    with monkeypatch.context() as other:
        other.setattr(run_index, "code_state", lambda: "other code")
        here(*RUN, "--out", str(tmp_path / "runs"))
    with monkeypatch.context() as other:
        other.setenv("CUDA_VISIBLE_DEVICES", "3")
        here(*RUN, "--out", str(tmp_path / "runs"))
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    here(*RUN, "--out", str(tmp_path / "runs"))
    assert True not in stored


def test_a_store_that_cannot_be_written_is_read_the_long_way(here: Here, stored: Seen, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / run_index.FOLDER).write_text("no folder")
    assert here(*RUN).returncode == here(*RUN).returncode == 0 and True not in stored


def test_it_loads_no_torch(here: Here, tmp_path: Path) -> None:
    here(*RUN)
    code = "import sys; sys.argv = ['vitattack', *sys.argv[1:]]; from vitattack.cli.main import main\n"
    code += "try: main()\nfinally: print('torch' in sys.modules, 'numpy' in sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code, *RUN], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "False False"


def test_the_request_holds_every_parameter_but_the_forms_of_the_output() -> None:
    names = {parameter.name for parameter in eval_command.command.params if parameter.expose_value}
    request = eval_command._request(dict.fromkeys(filter(None, names)))
    assert names - set(request) == {"as_json", "form", "quiet", "save_adv", "save_png"} and request["threads"] >= 1


def test_a_stored_run_is_printed_with_the_examples_that_are_asked_for(here: Here, stored: Seen, tmp_path: Path) -> None:
    assert here(*RUN, "--quiet").returncode == 0
    assert here(*RUN, "--save-adv", "--quiet").returncode == 0  # found, and still crafted once more
    [folder] = tmp_path.glob("runs/*/adversarial")
    assert len([*folder.glob("*.safetensors")]) == 2
    done = here(*RUN, "--save-png")
    assert stored == [False, True, True] and len([*folder.glob("png/*.png")]) == 6
    assert "from the store" in done.stderr


def test_a_shard_that_finishes_one_attack_of_two_shows_and_indexes_neither(here: Here, stored: Seen) -> None:
    words = ("eval", "tiny-vit", *SMALL, "--quiet", "--json")
    assert '"finished": false' in here(*words, "fgsm", "--shard", "1/2").stdout
    assert '"finished": false' in here(*words, "fgsm", "pgd(steps=2)", "--shard", "0/2").stdout
    whole = json.loads(here(*words, "fgsm", "pgd(steps=2)").stdout)
    assert [result["attack"] for result in whole["attacks"]] == ["fgsm", "pgd(steps=2)"] and not any(stored)
