"""Images of several sizes in one run: each size as it would be alone, whatever stops or shares the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from tests.models.hugging_face.folders import save_vit
from vitattack import evaluate
from vitattack.core.errors import UsageError
from vitattack.data import DataSet
from vitattack.data.dataset import from_images
from vitattack.data.image_sizes import in_order_of_size, of_one_size
from vitattack.evaluation.evaluate import Evaluation
from vitattack.evaluation.second_pass import LaterPass
from vitattack.models.victim import Victim
from vitattack.models.zoo.file_options import FileOptions
from vitattack.models.zoo.load import load_model
from vitattack.records.saved_examples import SavedExamples
from vitattack.records.store import Sink

SIZES = ((16, 16), (16, 24), (32, 16))
SETTINGS: dict[str, Any] = {"threat": "linf:4/255", "batch_size": 2, "threads": 1}
ATTACKS = [
    "pgd(steps=3)",
    "aas(pgd(steps=2))",
    pytest.param("auto(steps=2, k=2, long=4)", marks=pytest.mark.slow),
    "perceptual(fgsm, lpips=False)",
]


class AnySize(nn.Module):
    """A vision transformer that fits its position embeddings to the images."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches = nn.Conv2d(3, 16, 8, 8)
        self.positions = nn.Parameter(0.3 * torch.randn(1, 16, 4, 4))
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens: Tensor = self.patches(x)
        tokens = tokens + F.interpolate(self.positions, tokens.shape[-2:], mode="bilinear")
        tokens = tokens.flatten(2).transpose(1, 2)
        tokens = tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]
        logits: Tensor = 8 * self.head(tokens.mean(1))
        return logits


def mixed(count: int = 11, seed: int = 1) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.rand(3, *SIZES[(5 * at) % 7 % 3], generator=draw) for at in range(count)]


def labelled(images: list[Tensor]) -> DataSet:
    model = AnySize().eval()
    with torch.no_grad():
        return from_images(images, torch.stack([model(image[None]).argmax() for image in images]))


def run(data: DataSet, attack: str, **more: Any) -> Evaluation:
    calibration = labelled([torch.rand(3, 16, 24) for _ in range(8)]) if attack.startswith("aas") else None
    victim = Victim(AnySize(), name="any", num_classes=3, input_size=16, any_size=True)
    return evaluate(victim, attack, data=data, calibration=calibration, **{**SETTINGS, **more})


@pytest.mark.parametrize("attack", ATTACKS)
def test_records_are_those_of_each_size_alone(attack: str) -> None:
    data = labelled(mixed())
    torch.manual_seed(2)
    together: list[Any] = list(run(data, attack).results[0].records)
    assert [record.index for record in together] == sorted(data.rows, key=lambda row: data.source.read([row])[0].shape)
    assert {record.status for record in together} != {"clean_wrong"}
    first: list[Any] = []
    for size in SIZES:
        rows = tuple(row for row in data.rows if data.source.read([row])[0].shape[-2:] == size)
        torch.manual_seed(2)
        first += run(replace(data, rows=rows), attack).results[0].records
    if "auto" in attack:  # its probe is drawn from all survivors
        together, first = ([(r.index, r.status) for r in records] for records in (together, first))
    assert together == first


def stored(out: Path) -> bytes:
    (path,) = out.glob("*/samples.jsonl")
    return path.read_bytes()


def test_a_stopped_run_goes_on_and_workers_store_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = labelled(mixed())
    run(data, "pgd(steps=2)", out=tmp_path / "whole", save_adv=True)

    write = Sink.write

    def stop_in_third(self: Sink, *given: Any) -> None:
        if len(self.records) == 4:
            raise KeyboardInterrupt
        write(self, *given)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Sink, "write", stop_in_third)
        run(data, "pgd(steps=2)", out=tmp_path / "parts", save_adv=True)
    assert stored(tmp_path / "parts")
    assert stored(tmp_path / "whole").startswith(stored(tmp_path / "parts"))
    run(data, "pgd(steps=2)", out=tmp_path / "parts", save_adv=True)
    run(data, "pgd(steps=2)", out=tmp_path / "two", jobs=2)
    for number in (0, 1):
        run(data, "pgd(steps=2)", out=tmp_path / "shards", shard=(number, 2))
    assert len({stored(tmp_path / name) for name in ("whole", "parts", "two", "shards")}) == 1
    (folder,) = (tmp_path / "parts").glob("*/adversarial")
    examples = SavedExamples(folder.parent)
    assert len(examples) == len(data) and {examples[row].x.shape[1:] for row in data.rows} == set(SIZES)
    with pytest.raises(UsageError, match="differ in size: read them one by one"):
        examples.columns()


def test_the_key_is_of_all_images_and_their_order_of_size() -> None:
    data = labelled(mixed())
    turned = replace(data, rows=data.rows[::-1])
    ordered = in_order_of_size(turned)
    assert ordered.digest() != in_order_of_size(data).digest()
    assert ordered.protocol["image_sizes"] == 3 and "image_sizes" not in in_order_of_size(of_one_size(data)).protocol
    cut = list(ordered.cut(2))
    assert [row for rows in cut for row in rows] == list(ordered.rows)
    assert all(len({ordered.sizes[row] for row in rows}) == 1 for rows in cut if ordered.sizes)
    assert ordered.rows[0] == max(row for row in data.rows if data.source.read([row])[0].shape[-2:] == SIZES[0])


def test_later_passes_are_cut_by_size_too() -> None:
    data = in_order_of_size(labelled(mixed()))
    again = LaterPass(2, None, data.rows[::2], 0)  # type: ignore[arg-type]  # the attack does not matter
    cut = again.batches(data, 2)
    assert tuple(row for rows in cut for row in rows) == again.rows
    assert data.sizes and all(len({data.sizes[row] for row in rows}) == 1 for rows in cut)


class Pairs(Dataset[Any]):
    def __init__(self, data: DataSet) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, at: int) -> tuple[Tensor, int]:
        x, y = self.data.read([at])
        return x[0], int(y)


def test_data_sets_and_loaders_may_hold_several_sizes() -> None:
    data = labelled(mixed(5))
    results = [
        evaluate(AnySize(), "fgsm", data=given, **SETTINGS).results[0].records
        for given in (data, Pairs(data), DataLoader(Pairs(data), batch_size=1))
    ]
    assert results[0] == results[1] == results[2]


class Fixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3 * 16 * 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x.flatten(1))
        return logits


def test_a_model_of_one_size_says_so_before_it_runs() -> None:
    with pytest.raises(
        UsageError, match="differ in size, and .* fails on one of 16 x 24 px .*: bring them to one size"
    ):
        evaluate(Fixed(), "fgsm", data=labelled(mixed()), **SETTINGS)


def folder_of(images: list[Tensor], root: Path) -> str:
    for at, image in enumerate(images):
        (root / f"c{at % 2}").mkdir(parents=True, exist_ok=True)
        pixels = (image * 255).round().byte().permute(1, 2, 0).numpy()
        Image.fromarray(pixels).save(root / f"c{at % 2}" / f"{at}.png")
    return f"folder:{root}"


@pytest.mark.parametrize("cls", ["Dinov2ForImageClassification", "ViTForImageClassification"])
def test_a_folder_of_transformers_takes_files_as_they_are(cls: str, tmp_path: Path) -> None:
    save_vit(tmp_path / "model", cls, names=["c0", "c1"])
    text = folder_of([torch.rand(3, *size) for size in ((32, 32), (40, 32), (32, 32), (40, 64))], tmp_path / "data")
    given = FileOptions(input_size="any")
    result = evaluate(str(tmp_path / "model"), "fgsm", data=text, options=given, **SETTINGS).results[0]
    assert result.n == 4 and result.job.data.endswith("@none") and result.provenance["protocol"]["image_sizes"] == 3
    one, several = (load_model(str(tmp_path / "model"), torch.device("cpu"), o).victim for o in (FileOptions(), given))
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(one(x), several(x))
    with pytest.raises(UsageError, match="states the size of its images itself"):
        load_model(str(tmp_path / "model"), torch.device("cpu"), FileOptions(input_size="48"))


def test_without_the_option_one_line_names_it(tmp_path: Path) -> None:
    save_vit(tmp_path / "model", names=["c0", "c1"])
    text = folder_of([torch.rand(3, *size) for size in ((32, 32), (40, 32))], tmp_path / "data")
    with pytest.raises(UsageError, match=r"images of different sizes .*, or --input-size any if the model takes them"):
        evaluate(str(tmp_path / "model"), "fgsm", data=text, transform="none", **SETTINGS)
