"""`vitattack runs`: what a store holds is listed, shown, exported, verified, merged and deleted without torch."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas
import pytest

from tests.cli.conftest import Here
from tests.conftest import tiny_vit, toy_pictures
from tests.records.making_runs import make_job, make_run
from vitattack.core.errors import UsageError
from vitattack.evaluation.evaluate import evaluate
from vitattack.records.record_file import RecordFile
from vitattack.records.saved_examples import SavedExamples
from vitattack.records.sealed import load, sealed_text
from vitattack.records.store_care import merge_stores
from vitattack.records.stored_runs import earliest, find_run, stored_runs

LETTERS = "rrffcrri"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A finished run, one with a doubt, an unfinished one, a damaged one, one of later times, and things that are no runs."""
    root = tmp_path / "runs"
    make_run(root, LETTERS)
    make_run(root, LETTERS, attack="fgsm", doubts=["one step only"])
    make_run(root, LETTERS, model="two", stop_after=1)
    damaged = make_run(root, LETTERS, model="three")
    (damaged / "samples.jsonl").write_bytes((damaged / "samples.jsonl").read_bytes()[:-9])
    newer = make_run(root, LETTERS, model="four")
    (newer / "result.json").write_text('{"schema": 99}')
    (root / ".index").mkdir()
    (root / "notes.txt").write_text("hello")
    return root


def test_a_list_says_what_each_run_is_and_how_far(here: Here, store: Path) -> None:
    content = json.loads(here("runs", "--json").stdout)
    runs = {(run["job"]["model"], run["job"]["attack"]) if run["job"] else None: run for run in content["runs"]}
    assert content["schema"] == 1 and len(content["runs"]) == 5
    assert runs["one", "pgd"]["robust"]["correct"] == 4 and runs["one", "pgd"]["clean"]["correct"] == 7
    assert (runs["one", "pgd"]["passes"], runs["one", "pgd"]["seconds"]) == (9.0, 2.5)
    assert runs["one", "fgsm"]["doubts"] == ["one step only"]
    assert (runs["two", "pgd"]["state"], runs["two", "pgd"]["n"]) == ("unfinished", 4)
    assert runs["three", "pgd"]["state"] == "damaged" and runs[None]["state"] == "newer"
    table = here("runs").stdout
    assert "5 runs" in table and "50.0 %?" in table and "unfinished: n counts the images so far" in table


def test_a_list_can_be_narrowed(here: Here, store: Path) -> None:
    def models(*words: str) -> list[str]:
        return sorted(run["job"]["model"] for run in json.loads(here("runs", "--json", *words).stdout)["runs"])

    assert models("--model", "ONE") == ["one", "one"] and models("--model", "t*o", "--since", "1h") == ["two"]
    assert models("--attack", "fgsm") == ["one"] and models("--state", "unfinished") == ["two"]
    assert models("--since", "2999-01-01") == []
    assert earliest("2d") == pytest.approx(time.time() - 2 * 86400, abs=5)
    assert "is no time: write 3d" in here("runs", "--since", "soon").stderr


def test_being_written_shows(store: Path) -> None:
    unfinished = next(run for run in stored_runs(store) if run.state == "unfinished")
    file = RecordFile(unfinished.folder / "samples.jsonl")
    try:
        assert find_run(store, unfinished.key).state == "running"
    finally:
        file.close()
    assert find_run(store, unfinished.key).state == "unfinished"


def test_runs_are_shown_as_they_were_printed(here: Here, store: Path) -> None:
    key, other = make_job().key, make_job(attack="fgsm").key
    shown = here("runs", "show", key[:6], other).stdout
    assert "worst case" in shown and "doubt: one step only" in shown and "one | linf:8/255 | toys | n = 8" in shown
    assert json.loads(here("runs", "show", key, "--json").stdout)["attacks"][0]["robust"]["correct"] == 4
    assert str(store / make_job().folder) in here("runs", "open", str(store / make_job().folder), "--path").stdout
    for text, message in [
        ("nothing", "unknown run 'nothing'"),
        (make_job("two").key, "is not finished (4 images so far): run its command again"),
        (make_job("three").key, "is damaged: run its command again"),
    ]:
        done = here("runs", "show", text)
        assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1


def test_the_order_and_the_last_are_by_time(store: Path) -> None:
    first = store / make_job().folder / "result.json"
    first.touch()
    os.utime(first, (time.time() + 100, time.time() + 100))
    assert find_run(store, "last").key == make_job().key == stored_runs(store)[0].key


def test_deleting_asks_and_spares_what_is_being_written(here: Here, store: Path) -> None:
    key = make_job().key
    done = here("runs", "rm", key)
    assert done.returncode == 2 and "add --yes" in done.stderr and (store / make_job().folder).exists()
    file = RecordFile(store / make_job().folder / "samples.jsonl")
    try:
        code = "import sys; sys.argv[0] = 'vitattack'; from vitattack.cli.main import main; main()"
        words = [sys.executable, "-c", code, "runs", "rm", key, "--yes"]
        busy = subprocess.run(words, cwd=store.parent, capture_output=True, text=True)
    finally:
        file.close()
    assert busy.returncode == 2 and "another process is writing" in busy.stderr
    assert here("runs", "rm", key, "last", "--yes").returncode == 0
    assert not (store / make_job().folder).exists() and len(stored_runs(store)) == 3


def test_a_folder_of_somebody_else_is_no_run(here: Here, tmp_path: Path) -> None:
    for name in ("project", "runs/training"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "result.json").write_text("{}")
    assert stored_runs(tmp_path / "runs") == []
    (tmp_path / "project" / "job.json").write_text("{}")
    done = here("runs", "rm", "./project", "--yes")
    assert done.returncode == 2 and "has not the name of a run" in done.stderr
    assert (tmp_path / "project" / "result.json").exists()


def test_rows_of_every_image_are_exported(here: Here, store: Path, tmp_path: Path) -> None:
    done = here("runs", "export", "--csv", "all.csv")
    assert "16 rows of 2 runs" in done.stderr and "3 runs are not finished" in done.stderr
    rows = list(csv.DictReader((tmp_path / "all.csv").read_text().splitlines()))
    assert len(rows) == 16 and {row["status"] for row in rows} == {"robust", "fooled", "clean_wrong", "invalid"}
    assert here("runs", "export", "--parquet", "one.parquet", make_job().key).returncode == 0
    frame = pandas.read_parquet(tmp_path / "one.parquet")
    assert frame["status"].tolist()[:3] == ["robust", "robust", "fooled"] and set(frame["run"]) == {make_job().key}
    assert "name one file to write" in here("runs", "export").stderr
    assert "cannot write no/dir.csv" in here("runs", "export", "--csv", "no/dir.csv", make_job().key).stderr


def test_verify_says_what_is_damaged(here: Here, store: Path) -> None:
    assert here("runs", "verify", make_job().key).returncode == 0
    path = store / make_job().folder / "samples.jsonl"
    content = bytearray(path.read_bytes())
    content[5] ^= 1  # of equal size, which the list does not notice
    path.write_bytes(content)
    done = here("runs", "verify")
    assert done.returncode == 1 and "samples.jsonl: bytes 0 to" in done.stdout
    told = {
        run["run"].rpartition("/")[2]: run["damage"]
        for run in json.loads(here("runs", "verify", "--json").stdout)["runs"]
    }
    assert told[make_job(attack="fgsm").folder] == [] and len(told[make_job().folder]) == 1


def test_stores_are_merged_and_finished_runs_stay(here: Here, tmp_path: Path) -> None:
    here_, there = tmp_path / "here", tmp_path / "there"
    make_run(there, LETTERS)
    make_run(there, LETTERS, attack="fgsm")
    make_run(there, LETTERS, attack="new", stop_after=1)
    make_run(here_, LETTERS, attack="fgsm", stop_after=1)
    same = make_run(here_, LETTERS)
    before = (same / "result.json").read_bytes()
    done = here("runs", "merge", "there", "--out", "here")
    assert done.stdout == "here: 1 added, 1 completed, 1 were there, 0 not taken\n"
    assert {run.state for run in stored_runs(here_)} == {"finished", "unfinished"} and len(stored_runs(here_)) == 3
    assert (same / "result.json").read_bytes() == before
    shutil.rmtree(same)
    make_run(here_, "ffffffff")
    assert "finished in both with other records" in here("runs", "merge", "there", "--out", "here").stderr
    with pytest.raises(UsageError, match="is the store to merge into"):
        merge_stores([here_], here_)


def test_shards_of_two_machines_become_one_run(tmp_path: Path) -> None:
    x = toy_pictures(8)
    data, model = (x, tiny_vit()(x).argmax(1)), tiny_vit().model
    settings = {"threat": "linf:0.002", "batch_size": 2, "threads": 1, "data": data}
    whole = evaluate(model, "pgd(steps=2)", out=tmp_path / "whole", save_adv=True, **settings).results[0]
    for number in range(2):
        part = evaluate(
            model, "pgd(steps=2)", out=tmp_path / f"host{number}", shard=(number, 2), save_adv=True, **settings
        )
        assert not part.finished
    merged = merge_stores([tmp_path / "host0", tmp_path / "host1"], tmp_path / "all")
    assert [each.fate for each in merged] == ["added", "completed"]
    result = evaluate(model, "pgd(steps=2)", out=tmp_path / "all", shard=(0, 2), save_adv=True, **settings).results[0]
    assert list(result.records) == list(whole.records) and result.folder and whole.folder
    both = [SavedExamples(folder).columns().x_adv for folder in (result.folder, whole.folder)]
    assert np.array_equal(*both)


def test_two_hundred_runs_are_listed_at_once_and_without_torch(tmp_path: Path) -> None:
    template = make_run(tmp_path / "one", "rfrc" * 250)
    for number in range(200):
        job = make_job(model=f"model {number}")
        make = tmp_path / "runs" / job.folder
        shutil.copytree(template, make)
        content = load(make / "result.json")
        assert content
        (make / "result.json").write_text(sealed_text({**content, "key": job.key, "job": asdict(job)}))
    code = "import sys; sys.argv = ['vitattack', 'runs', '--json']; from vitattack.cli.main import main\n"
    code += "import time; began = time.process_time()\ntry: main()\n"
    code += "finally: print('torch' in sys.modules, 'numpy' in sys.modules, time.process_time(), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    torch, numpy, seconds = done.stderr.split()
    assert (torch, numpy) == ("False", "False") and float(seconds) < 0.7
    assert len(json.loads(done.stdout)["runs"]) == 200


def test_an_empty_store_and_texts_of_others_do_no_harm(here: Here, tmp_path: Path) -> None:
    assert here("runs").returncode == 2
    (tmp_path / "runs").mkdir()
    assert "0 runs" in here("runs").stdout and "holds no run" in here("runs", "show", "last").stderr
    make_run(tmp_path / "runs", LETTERS, model="\x1b[31m<b>\u202emodel</b>", attack="=cmd()")
    shown = here("runs").stdout + here("runs", "show", "last").stdout + here("runs", "--format", "md").stdout
    assert "\x1b" not in shown and "\u202e" not in shown
    assert here("runs", "export", "--csv", "a.csv").returncode == 0
    assert "'=cmd()" in (tmp_path / "a.csv").read_text()


def test_eval_of_two_models_ends_in_their_comparison(here: Here) -> None:
    words = ("eval", "tiny-vit", "tiny-vit-standard", "fgsm", "--limit", "6", "--threads", "1", "--batch-size", "3")
    first = json.loads(here(*words, "--json", "--quiet").stdout)
    assert [each["model"] for each in first["evaluations"]] == ["tiny-vit", "tiny-vit-standard"]
    [contrast] = first["comparison"]["rows"][0]["contrasts"]
    robust = [each["worst_case"]["correct"] for each in first["evaluations"]]
    assert len(contrast["won"]) - len(contrast["lost"]) == robust[1] - robust[0]
    again = here(*words, "--json")
    assert json.loads(again.stdout) == first and again.stderr.count("from the store") == 2
    assert json.loads(here("eval", "tiny-vit", *words[3:], "--json").stdout) == first["evaluations"][0]
    table = here(*words, "--quiet").stdout
    assert "tiny-vit against tiny-vit-standard | fgsm" in table and "robust accuracy minus that of tiny-vit" in table
    for wrong, message in [
        (("tiny-vit", "tiny-vit", "fgsm"), "a model is named twice"),
        (("tiny-vit", "tiny-vti", "fgsm"), "unknown model or attack 'tiny-vti': did you mean tiny-vit"),
        (("tiny-vit", "timm:vit_nowhere", "fgsm", "--arch", "x"), "--arch"),
    ]:
        done = here("eval", *wrong)
        assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1
