"""Protocols: the same images for everybody, and a result that says what was evaluated."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import vitattack
from tests.data.making import encoded, put, val
from vitattack.core.errors import UsageError
from vitattack.data import load_data, restrict_to_classes, takes_transform
from vitattack.data.catalogue import DATA_SETS
from vitattack.data.imagenet.classes import Classes
from vitattack.data.labels.imagenet import official_list, restricted_classes, robustbench_ids, synsets
from vitattack.data.protocols import PROTOCOLS
from vitattack.data.transform import Preprocessing
from vitattack.models.victim import as_victim, model_digest
from vitattack.records.job import Job


class Bright(nn.Module):
    """1000 logits that depend on the mean colours; no claim to know anything."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 1000)
        nn.init.normal_(self.head.weight, generator=torch.Generator().manual_seed(0))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.mean((2, 3)))


def validation(root: Path, numbers: tuple[int, ...]) -> Path:
    for k, name in enumerate(official_list(numbers).split()):
        put(root / "val" / name, encoded((20 * k, 90, 200 - 10 * k), (20, 12), "JPEG"))
    return root


def test_each_protocol_says_which_images_how_and_who_says_so() -> None:
    fixed = {name: protocol for name, protocol in PROTOCOLS.items() if protocol.draw is None}
    assert set(fixed) == {"robustbench-imagenet-5k", "robustvlm-imagenet-5k", "ares-1k", "bhojanapalli-1k"}
    assert [len(protocol.rows) for protocol in fixed.values()] == [5000, 5000, 1000, 1000]
    assert all(protocol.images == len(protocol.rows) for protocol in fixed.values())
    robustbench = PROTOCOLS["robustbench-imagenet-5k"]
    assert robustbench.list_sha256.startswith("d4121626d07722a0") and robustbench.published_ids
    for name in ("ares-1k", "bhojanapalli-1k"):
        protocol = PROTOCOLS[name]
        assert not protocol.published_ids and "not public" in protocol.selection
        assert protocol.rows == tuple(sorted(set(protocol.rows))) and protocol.rows[-1] < 50_000


@pytest.mark.parametrize(
    ("name", "how", "decided"),
    [
        ("robustbench-imagenet-5k", "bicubic256crop224", "model"),
        ("ares-1k", "bilinear256crop224", "data"),
        ("bhojanapalli-1k", "resize384x384", "data"),
    ],
)
def test_the_transform_and_who_decided_it(tmp_path: Path, name: str, how: str, decided: str) -> None:
    first = PROTOCOLS[name].rows[0]
    validation(tmp_path, (first + 1,))
    data = load_data(f"{name}[:1]", data_dir=tmp_path, model_transform="bicubic256crop224", px=384)
    assert data.text == f"{name}@{how}[:1]" and data.rows == (first,)
    assert (data.protocol["transform"], data.protocol["transform_from"]) == (how, decided)
    again = load_data(data.text, data_dir=tmp_path)
    assert again.text == data.text and again.digest() == data.digest(), "the canonical text names the same set"
    same = load_data(f"{name}[:1]", data_dir=tmp_path, transform=how, model_transform="bicubic256crop224", px=384)
    assert same.text == data.text and same.protocol["deviations"] == data.protocol["deviations"]
    given = load_data(f"{name}[:1]", data_dir=tmp_path, transform="resize8x8", px=384)
    assert given.protocol["deviations"][-1] == "transform resize8x8 was asked for"


def test_conflicting_and_missing_transforms() -> None:
    with pytest.raises(UsageError, match="two transforms are named"):
        Preprocessing("none").settle("crop224", None)
    with pytest.raises(UsageError, match="scaled to the model's input, which is not known"):
        Preprocessing().settle(None, "resize{px}x{px}")
    assert Preprocessing(None, "crop224").settle(None, None) == ("crop224", "model")


def test_the_protocol_is_in_the_result_and_in_the_key(tmp_path: Path) -> None:
    validation(tmp_path / "data", robustbench_ids()[:5])
    results = {}
    for text, transform in (("robustbench-imagenet-5k[:5]", "resize8x8"), ("robustbench-imagenet-5k[:5]", "resize9x9")):
        evaluation = vitattack.evaluate(
            Bright(),
            "fgsm",
            data=text,
            data_dir=tmp_path / "data",
            transform=transform,
            threads=1,
            out=tmp_path / "out",
        )
        results[transform] = evaluation
        content = evaluation.json()
        protocol = content["provenance"]["protocol"]
        assert content["data"] == f"robustbench-imagenet-5k@{transform}[:5]"
        assert protocol["name"] == "robustbench-imagenet-5k" and protocol["data"] == "imagenet" and protocol["n"] == 5
        assert protocol["deviations"] == ["5 of 5000 images", f"transform {transform} was asked for"]
        assert "not robustbench-imagenet-5k as published: 5 of 5000 images" in evaluation.doubts
        stored = json.loads((tmp_path / "out" / evaluation.job.folder / "result.json").read_text())
        assert stored["provenance"]["protocol"] == protocol
        assert [r.index + 1 for r in evaluation.results[0].records] == list(robustbench_ids()[:5])
    jobs: list[Job] = [evaluation.job for evaluation in results.values()]
    assert jobs[0].key != jobs[1].key


def test_every_result_says_what_was_evaluated() -> None:
    found = vitattack.evaluate("tiny-vit", "fgsm", limit=4, threads=1).json()["provenance"]["protocol"]
    assert (found["name"], found["data"], found["selection"], found["n"]) == (None, "cifar10-demo", ":4", 4)
    assert found["transform"] == "none" and found["classes"] is None


def test_a_1000_way_model_is_asked_among_the_classes_of_the_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitattack.data.openers.check_count", lambda found, wanted, where: None)
    numbers = restricted_classes("r")
    for k in (0, 5, 199):
        put(tmp_path / "imagenet-r" / synsets()[numbers[k]] / "a.jpg", encoded((k, 0, 0)))
    model = Bright()
    shown = {"threads": 1, "data_dir": tmp_path}
    restricted = vitattack.evaluate(model, "fgsm", data="imagenet-r", **shown)
    x, _ = load_data("imagenet-r", data_dir=tmp_path).read([0, 1, 2])
    logits = model(x)
    assert [r.clean for r in restricted.results[0].records] == logits[:, list(numbers)].argmax(1).tolist()
    protocol = restricted.json()["provenance"]["protocol"]
    named = "\n".join(synsets()[number] for number in numbers)
    assert (protocol["classes"], protocol["classes_sha256"]) == (
        "imagenet-r",
        hashlib.sha256(named.encode()).hexdigest(),
    )
    free = vitattack.evaluate(model, "fgsm", data="imagenet-r/unrestricted", **shown)
    assert [r.clean for r in free.results[0].records] == logits.argmax(1).tolist()
    assert free.job.key != restricted.job.key


def test_transfer_asks_among_the_classes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitattack.evaluation.transfer.study import transfer

    monkeypatch.setattr("vitattack.data.openers.check_count", lambda found, wanted, where: None)
    numbers = restricted_classes("r")
    for k in (0, 5, 199):
        put(tmp_path / "imagenet-r" / synsets()[numbers[k]] / "a.jpg", encoded((k, 0, 0)))
    model = Bright()
    matrix = transfer(
        [as_victim(model, torch.rand(1, 3, 8, 8))], attack="fgsm", data="imagenet-r", data_dir=tmp_path, threads=1
    )
    x, _ = load_data("imagenet-r", data_dir=tmp_path).read([0, 1, 2])
    answered = model(x)[:, list(numbers)].argmax(1).tolist()
    assert [record.clean for record in matrix.cells[0].result.records] == answered
    assert matrix.provenance["protocol"]["classes"] == "imagenet-r"


def test_the_restriction_is_part_of_what_is_digested_and_leaves_other_models_alone() -> None:
    x = torch.rand(2, 3, 8, 8)
    victim = as_victim(Bright(), x)
    one, two = Classes("one", ((0,), (1,))), Classes("two", ((0,), (2,)))
    assert (
        model_digest(restrict_to_classes(victim, one))
        != model_digest(restrict_to_classes(victim, two))
        != model_digest(victim)
    )
    assert restrict_to_classes(victim, None) is victim
    small = as_victim(nn.Sequential(nn.Flatten(), nn.Linear(192, 2)), x)
    assert restrict_to_classes(small, one) is small
    assert torch.equal(restrict_to_classes(victim, two)(x), victim(x)[:, [0, 2]])


def test_calibration_images_are_others_of_the_same_set(tmp_path: Path) -> None:
    ids = robustbench_ids()[:6]
    validation(tmp_path, ids)
    data = load_data("robustbench-imagenet-5k[:4]", data_dir=tmp_path, model_transform="resize8x8")
    assert {row + 1 for row in data.spare(10)} == set(ids[4:]) and data.set_name == "imagenet"


def test_which_sets_take_a_transform() -> None:
    for text in ("folder:x[:3]", "imagenet", "ares-1k[:10]", "imagenet-c/fog/3", "imagenet-classes:f"):
        assert takes_transform(text)
    for text in ("cifar10[:10]", "npz:x", "cifar10-c/fog/3", "edm-cifar10-1m"):
        assert not takes_transform(text)
    with pytest.raises(UsageError, match="sets of image files"):
        vitattack.evaluate(data="cifar10-demo", transform="crop224")


def test_data_list_and_info_name_everything(tmp_path: Path) -> None:
    from vitattack.cli.main import cli

    run = CliRunner().invoke
    rows = json.loads(run(cli, ["data", "list", "--json"]).output)
    assert {row["name"] for row in rows} == {*DATA_SETS, *PROTOCOLS}
    for row in rows:
        done = run(cli, ["data", "info", row["name"], "--json"])
        assert done.exit_code == 0, done.output
        assert json.loads(done.output)["opened"] == (row["where"] == "embedded")
    protocol = json.loads(run(cli, ["data", "info", "robustbench-imagenet-5k", "--json"]).output)["protocol"]
    assert protocol["image_list_sha256"].startswith("d4121626") and protocol["image_list_published"] is True
    validation(tmp_path, robustbench_ids()[:3])
    done = run(cli, ["data", "info", "robustbench-imagenet-5k[:3]", "--data-dir", str(tmp_path), "--json"])
    content = json.loads(done.output)
    assert content["opened"] and content["n"] == 3 and content["image_sizes"] == {"12 x 20": 3}
    whole = run(cli, ["data", "info", "robustbench-imagenet-5k", "--data-dir", str(tmp_path)])
    assert isinstance(whole.exception, UsageError) and "lacks 4,997" in str(whole.exception)
    put(tmp_path / "imagenet-c" / "fog" / "1" / "n01751748" / val(1), encoded((1, 2, 3), (224, 224)))
    one = run(cli, ["data", "info", "imagenet-c/fog/1[:1]", "--data-dir", str(tmp_path), "--json"])
    assert json.loads(one.output)["n"] == 1
    bare = json.loads(run(cli, ["data", "info", "imagenet-c", "--data-dir", str(tmp_path), "--json"]).output)
    assert not bare["opened"] and bare["where"].endswith("imagenet-c/fog")
