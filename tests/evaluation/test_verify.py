"""Examples made elsewhere: everything that is wrong with one is found, and what is right is merged by who found it."""

from __future__ import annotations

import struct
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import save_file
from torch import Tensor

from tests.cli.conftest import Here
from tests.cli.conftest import here as here
from tests.conftest import tiny_vit, toy_pictures
from vitattack.core.errors import UsageError
from vitattack.evaluation.evaluate import evaluate
from vitattack.evaluation.verify import judge_again, verify
from vitattack.records.saved_examples import SavedExamples, folder_of
from vitattack.records.stored_runs import stored_runs
from vitattack.records.verification import Verification
from vitattack.report.verification import verification_tables

Images = tuple[Tensor, Tensor]
EPS = 2 / 255
BALL = "linf:2/255"
SETTINGS: dict[str, Any] = {"batch_size": 4, "threads": 1}


@pytest.fixture(scope="module")
def pictures() -> Images:
    """Images of bytes, labelled by the model itself."""
    x = (toy_pictures() * 255).round() / 255
    with torch.no_grad():
        return x, tiny_vit()(x).argmax(1)


@pytest.fixture(scope="module")
def made(pictures: Images, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """Examples of our own PGD, with what it says of them."""
    out = tmp_path_factory.mktemp("made")
    result = evaluate(tiny_vit().model, "pgd(steps=8)", data=pictures, threat=BALL, out=out, save_adv=True, **SETTINGS)
    columns = SavedExamples(result.results[0].folder or out).columns()
    assert 4 <= result.results[0].count("fooled") < 12
    return {name: getattr(columns, name) for name in ("x_adv", "label", "prediction", "index")}


def checked(path: Path, pictures: Images, **more: Any) -> Verification:
    return verify(path, tiny_vit().model, data=pictures, threat=BALL, **SETTINGS, **more)


def saved(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


def test_examples_of_a_run_are_confirmed_from_every_kind_of_file(
    tmp_path: Path, pictures: Images, made: dict[str, np.ndarray]
) -> None:
    files = [saved(tmp_path / "a.npz", **made), saved(tmp_path / "b.npz", adv=made["x_adv"], y=made["label"])]
    np.savez_compressed(
        tmp_path / "c.npz", x_adv=made["x_adv"].transpose(0, 2, 3, 1), label=made["label"].astype(np.int32)
    )
    save_file({name: np.ascontiguousarray(each) for name, each in made.items()}, tmp_path / "d.safetensors")
    want = {int(i) for i, p, y in zip(made["index"], made["prediction"], made["label"], strict=True) if p != y}
    for path in (*files, tmp_path / "c.npz", tmp_path / "d.safetensors"):
        found = checked(path, pictures)
        assert set(found.fooled) == want and not found.refuted and len(found.given) == 12, path
        assert found.largest == pytest.approx(EPS, abs=1e-6)
        assert found.result.robust.correct == 12 - len(want)


def test_a_subset_by_index_counts_the_others_as_not_fooled(
    tmp_path: Path, pictures: Images, made: dict[str, np.ndarray]
) -> None:
    order = [7, 2, 5]
    found = checked(saved(tmp_path / "a.npz", **{name: each[order] for name, each in made.items()}), pictures)
    want = {row for row in order if made["prediction"][row] != made["label"][row]}
    assert set(found.fooled) == want and found.result.n == 12 and not found.refuted
    assert any("9 of 12 images have no example and count as not fooled" in doubt for doubt in found.result.doubts)


def test_every_fault_is_found_where_it_is(tmp_path: Path, pictures: Images, made: dict[str, np.ndarray]) -> None:
    x, y = pictures[0].numpy().copy(), pictures[1].numpy()
    bad = {name: each.copy() for name, each in made.items()}
    bad["x_adv"][0] = x[0]
    bad["x_adv"][0, 1, 5, 5] = x[0, 1, 5, 5] + (EPS + 1e-5) * (1 if x[0, 1, 5, 5] < 0.5 else -1)  # outside by 1e-5
    bad["x_adv"][1, 0, 0, 0] = np.nan
    bad["x_adv"][2] = x[2]
    x[2, 2, 9, 9] = 1.0  # the data, too: a white pixel
    bad["x_adv"][2, 2, 9, 9] = 1.0 + 1e-6
    bad["label"][3] = (bad["label"][3] + 1) % 10
    bad["prediction"][4] = (bad["prediction"][4] + 1) % 10
    bad["x_adv"][5] = x[5]
    bad["x_adv"][5, 1, 5, 5] += 0.99999 * EPS * (1 if x[5, 1, 5, 5] < 0.5 else -1)  # just inside
    found = checked(saved(tmp_path / "bad.npz", **bad), (torch.from_numpy(x), torch.from_numpy(y)))
    assert found.refuted
    faults = {name: set(rows) for name, rows in found.faults.items()}
    assert faults["out_of_budget"] == {0} and faults["not_finite"] == {1} and faults["out_of_range"] == {2}
    assert faults["other_label"] == {3} and 4 in faults["other_prediction"]
    assert not {0, 1, 2} & set(found.fooled)
    [table] = verification_tables(found)
    assert "refuted in part" in table.title and ("lie outside the budget", "1", "0") in table.rows


def test_another_order_of_labels_is_noticed(tmp_path: Path, pictures: Images, made: dict[str, np.ndarray]) -> None:
    found = checked(saved(tmp_path / "a.npz", x_adv=made["x_adv"], label=np.roll(made["label"], 1)), pictures)
    wrong = int((np.roll(made["label"], 1) != made["label"]).sum())
    assert len(found.faults["other_label"]) == wrong > 6
    turned = checked(saved(tmp_path / "b.npz", x_adv=np.roll(made["x_adv"], 1, 0), label=made["label"]), pictures)
    assert len(turned.faults["out_of_budget"]) == 12 and turned.fooled == ()


def test_what_dies_at_8_bits_is_said(tmp_path: Path, pictures: Images, made: dict[str, np.ndarray]) -> None:
    """An example between two steps of 1/255: whatever fools within less than half a step is gone after rounding."""
    weak = evaluate(
        tiny_vit().model, "pgd(steps=8)", data=pictures, threat="linf:0.0019", out=tmp_path, save_adv=True, **SETTINGS
    ).results[0]
    assert weak.count("fooled") > 0 and weak.folder
    found = checked(weak.folder, pictures)
    assert set(found.lost_by_rounding) == set(found.fooled) and not found.refuted  # rounding gives the clean image back
    assert any("only before they are rounded to 8 bits" in doubt for doubt in found.result.doubts)
    eight = np.rint(made["x_adv"] * 255).astype(np.uint8)
    bytes_ = checked(saved(tmp_path / "bytes.npz", x_adv=eight, label=made["label"]), pictures)
    assert bytes_.lost_by_rounding == () and bytes_.faults["out_of_budget"] == () and bytes_.fooled


def test_a_folder_of_pngs_and_a_run_are_read(tmp_path: Path, pictures: Images, made: dict[str, np.ndarray]) -> None:
    result = evaluate(
        tiny_vit().model, "pgd(steps=8)", data=pictures, threat=BALL, out=tmp_path / "runs", save_png=True, **SETTINGS
    ).results[0]
    assert result.folder
    ours = checked(folder_of(result.folder), pictures)
    images = checked(folder_of(result.folder) / "png", pictures)
    assert set(ours.fooled) == {r.index for r in result.records if r.status == "fooled"}
    assert len(images.given) == 12 and images.lost_by_rounding == () and set(images.fooled) <= set(ours.fooled)
    loose = tmp_path / "loose"
    loose.mkdir()
    for row in (3, 8):
        pixels = np.rint(made["x_adv"][row] * 255).astype(np.uint8).transpose(1, 2, 0)
        Image.fromarray(pixels).save(loose / f"{row:06d}.png")
    assert {record.index for record in checked(loose, pictures).given} == {3, 8}
    (loose / "hello.png").write_bytes((loose / "000003.png").read_bytes())
    with pytest.raises(UsageError, match="does not begin with the row of its image"):
        checked(loose, pictures)
    (loose / "hello.png").unlink()
    (loose / "4.jpg").write_bytes(b"x")
    with pytest.raises(UsageError, match="compressed with losses"):
        checked(loose, pictures)


def test_what_another_model_said_of_saved_examples_is_no_claim(tmp_path: Path, pictures: Images) -> None:
    run = evaluate(
        tiny_vit().model, "fgsm", data=pictures, threat=BALL, out=tmp_path, save_adv=True, **SETTINGS
    ).results[0]
    assert run.folder
    found = verify(run.folder, tiny_vit(seed=3).model, data=pictures, threat=BALL, **SETTINGS)
    assert not found.refuted and found.source == f"run-{run.job.key[:8]}"


def test_examples_join_the_worst_case_and_it_is_said_who_found_what(
    tmp_path: Path, pictures: Images, made: dict[str, np.ndarray]
) -> None:
    weak = evaluate(tiny_vit().model, "fgsm", data=pictures, threat=BALL, out=tmp_path / "runs", **SETTINGS).results[0]
    found = checked(saved(tmp_path / "a.npz", **made), pictures, against=[weak], out=tmp_path / "runs")
    fooled = [{r.index for r in run.records if r.status == "fooled"} for run in (weak, found.result)]
    assert found.worst_case.correct == 12 - len(fooled[0] | fooled[1]) and set(found.new) == fooled[1] - fooled[0]
    fgsm, given = found.contributions
    assert (fgsm.fooled, fgsm.alone) == (len(fooled[0]), len(fooled[0] - fooled[1]))
    assert (given.source, given.alone) == ("a.npz", len(fooled[1] - fooled[0]))
    assert [run.job.attack for run in stored_runs(tmp_path / "runs") if run.job][:1] == ["examples(a.npz)"]
    again = checked(tmp_path / "a.npz", pictures, out=tmp_path / "runs")
    assert [r.line() for r in again.result.records] == [r.line() for r in found.result.records]
    for more, message in [
        ({"threat": "linf:1/255"}, "is under linf:2/255, the examples under linf:1/255"),
        ({"model": tiny_vit(seed=3).model}, "is of another model"),
        ({"data": (pictures[0].flip(0), pictures[1].flip(0))}, "is on other images"),
    ]:
        settings: dict[str, Any] = {"model": tiny_vit().model, "data": pictures, "threat": BALL, **SETTINGS, **more}
        with pytest.raises(UsageError, match=message):
            verify(tmp_path / "a.npz", settings.pop("model"), against=[weak], **settings)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"x": 1}, "holds x|no x_adv|is not a plain npz"),
        ({"x_adv": np.zeros((12, 3, 32))}, "images of shape"),
        ({"x_adv": np.zeros((12, 3, 32, 32), np.complex64)}, "of type complex64"),
        ({"x_adv": np.full((12, 3, 32, 32), 77.0)}, "pixels up to 77: divide them by 255"),
        ({"x_adv": np.zeros((11, 3, 32, 32))}, "11 examples and no index"),
        ({"x_adv": np.zeros((12, 3, 32, 32)), "label": np.zeros(5, int)}, "12 images and 5 of label"),
        ({"x_adv": np.zeros((12, 3, 32, 32)), "label": np.zeros(12)}, "an integer per image"),
        ({"x_adv": np.zeros((2, 3, 32, 32)), "index": np.array([3, 3])}, "several examples of image 3"),
        ({"x_adv": np.zeros((2, 3, 32, 32)), "index": np.array([3, 99])}, "an example of image 99"),
        ({"x_adv": np.zeros((12, 3, 8, 8))}, "images of 3 x 8 x 8"),
        ({"x_adv": np.array([None] * 12)}, "is not a plain npz file"),
    ],
)
def test_strange_arrays_are_refused_in_one_line(
    tmp_path: Path, pictures: Images, content: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        checked(saved(tmp_path / "a.npz", **content), pictures)
    assert "\n" not in str(refused.value)


def test_hostile_files_are_refused_in_one_line(tmp_path: Path, pictures: Images, made: dict[str, np.ndarray]) -> None:
    save_file({"x_adv": made["x_adv"]}, tmp_path / "whole.safetensors")
    whole = (tmp_path / "whole.safetensors").read_bytes()
    bomb = b'{"x_adv":{"dtype":"F32","shape":[12,3,99999999,99999999],"data_offsets":[0,16]}}'
    contents = {
        "torn.safetensors": whole[:-100],
        "empty.safetensors": b"",
        "header.safetensors": struct.pack("<Q", 1 << 62) + whole[8:],
        "bomb.safetensors": struct.pack("<Q", len(bomb)) + bomb + bytes(16),
        "text.npz": b"PK\x03\x04 not a zip",
        "pickle.npz": b"\x80\x04cos\nsystem\n(S'true'\ntR.",
        "adv.pt": b"\x80\x04",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError) as refused:
            checked(tmp_path / name, pictures)
        assert "\n" not in str(refused.value) and name in str(refused.value)
    header = b"\x93NUMPY\x01\x00" + struct.pack("<H", 118)
    header += (b"{'descr': '<f4', 'fortran_order': False, 'shape': (999999, 3, 999999, 999999), }").ljust(117) + b"\n"
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as archive:
        archive.writestr("x_adv.npy", header)
    (tmp_path / "nothing").mkdir()
    for name, message in [
        ("huge.npz", "is not a plain npz"),
        ("nothing", "holds no examples"),
        ("none.npz", "no examples"),
    ]:
        with pytest.raises(UsageError, match=message):
            checked(tmp_path / name, pictures)
    with pytest.raises(UsageError, match="verify is for linf, l2, l1 and l0"):
        verify(tmp_path / "whole.safetensors", tiny_vit().model, data=pictures, threat="spatial", **SETTINGS)


def test_the_command(here: Here, tmp_path: Path) -> None:
    words = ("tiny-vit", "--limit", "6", "--batch-size", "3", "--threads", "1")
    assert here("eval", "tiny-vit", "fgsm", *words[1:], "--save-adv", "--quiet").returncode == 0
    [folder] = tmp_path.glob("runs/*-fgsm-*")
    done = here("verify", str(folder), *words, "--with", "last", "--quiet")
    assert (
        done.returncode == 0
        and "nothing is wrong with them" in " ".join(done.stdout.split())
        and "who found what" in done.stdout
    )
    assert "examples(" in here("runs").stdout and "worst case" in here("runs", "show", *_keys(tmp_path)).stdout
    examples = SavedExamples(folder).columns()
    np.savez(tmp_path / "bad.npz", x_adv=np.clip(examples.x_adv + 0.1, 0, 1), label=examples.label)
    bad = here("verify", "bad.npz", *words, "--quiet", "--json")
    assert bad.returncode == 1 and '"refuted": true' in bad.stdout
    for wrong, message in [
        (("nothing.npz", "tiny-vit"), "there are no examples at 'nothing.npz'"),
        (("bad.npz", "tiny-vti"), "unknown model 'tiny-vti'"),
        (("bad.npz", "tiny-vit", "--with", "xyz"), "unknown run 'xyz'"),
        (("bad.npz", "tiny-vit", "--threat", "linf:1/255,2/255"), "give one --threat"),
    ]:
        refused = here("verify", *wrong)
        assert refused.returncode == 2 and message in refused.stderr and refused.stderr.count("\n") == 1


def _keys(root: Path) -> list[str]:
    return [run.key for run in stored_runs(root / "runs")]


def test_torchattacks_examples_are_read_checked_and_merged(tmp_path: Path, pictures: Images) -> None:
    torchattacks = pytest.importorskip("torchattacks")
    x, y = pictures
    victim = tiny_vit()
    attack = torchattacks.PGD(victim, eps=EPS, alpha=EPS / 4, steps=8)
    _merged(tmp_path, pictures, attack(x, y).detach(), x, y)


def test_foolbox_examples_are_read_checked_and_merged(tmp_path: Path, pictures: Images) -> None:
    foolbox = pytest.importorskip("foolbox")
    x, y = pictures
    model = foolbox.PyTorchModel(tiny_vit(), bounds=(0, 1), device="cpu")
    attack = foolbox.attacks.LinfPGD(steps=8)
    _, clipped, _ = attack(model, x, y, epsilons=EPS)
    _merged(tmp_path, pictures, clipped, x, y)


def _merged(tmp_path: Path, pictures: Images, x_adv: Tensor, x: Tensor, y: Tensor) -> None:
    """Verify examples of another library: what it fools, and nothing else, counts."""
    with torch.no_grad():
        said = tiny_vit()(x_adv).argmax(1)
    run = evaluate(tiny_vit().model, "fgsm", data=pictures, threat=BALL, out=tmp_path / "runs", **SETTINGS).results[0]
    path = saved(tmp_path / "theirs.npz", x_adv=x_adv.numpy(), label=y.numpy(), prediction=said.numpy())
    found = checked(path, pictures, against=[run])
    assert not found.refuted and set(found.fooled) == set((said != y).nonzero().flatten().tolist()) != set()
    assert found.worst_case.correct <= min(run.robust.correct, found.result.robust.correct)


def test_saved_examples_are_judged_once_more(here: Here, tmp_path: Path) -> None:
    words = (
        "tiny-vit-standard",
        "fgsm",
        "--limit",
        "6",
        "--batch-size",
        "3",
        "--threads",
        "1",
        "--save-adv",
        "--quiet",
    )
    assert here("eval", *words).returncode == 0
    done = here("runs", "verify", "last", "--judge")
    assert done.returncode == 0 and done.stdout.endswith(": whole\n")
    run = stored_runs(tmp_path / "runs")[0].result
    assert run.count("fooled") > 0
    assert judge_again(run, "tiny-vit") == ["'tiny-vit-standard' is another model now, its examples were not judged"]
    records = [replace(r, status="fooled") for r in run.records]
    told = judge_again(replace(run, records=records), "tiny-vit-standard")
    assert len(told) == (run.count("fooled") < 6) and all("successes do not hold" in line for line in told)
