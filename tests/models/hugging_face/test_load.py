"""Models of transformers give the logits and labels that transformers gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.models.hugging_face.folders import SHUFFLED, changed, save_vit
from vitattack.core.errors import UsageError
from vitattack.data import load_data, match_labels
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.digest import fingerprint
from vitattack.models.victim import frozen
from vitattack.models.zoo.file_options import FileOptions
from vitattack.models.zoo.load import load_model
from vitattack.text.class_lists import CIFAR10

transformers = pytest.importorskip("transformers")
CPU = torch.device("cpu")


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize(
    "cls", ["ViTForImageClassification", "Dinov2ForImageClassification", "DeiTForImageClassification"]
)
def test_logits_and_labels_are_those_of_transformers(cls: str, kernel: str, tmp_path: Path) -> None:
    save_vit(tmp_path, cls, names=SHUFFLED)
    data = load_data("cifar10-demo[:16]")
    images, _ = data.read(data.rows)
    theirs = getattr(transformers, cls).from_pretrained(tmp_path, attn_implementation=kernel).eval()
    processor = transformers.ViTImageProcessor.from_pretrained(tmp_path)
    with torch.no_grad():
        expected = theirs(**processor(list((images * 255).round().byte()), return_tensors="pt")).logits
    loaded = load_model(str(tmp_path), CPU, FileOptions(arch_kwargs={"attn_implementation": kernel}))
    assert loaded.labels == tuple(SHUFFLED) and loaded.record["attention_kernel"] == kernel
    mapped = match_labels(loaded.victim, loaded.labels, data)
    with frozen(mapped), torch.no_grad():
        assert torch.allclose(loaded.victim(images), expected, atol=1e-5, rtol=1e-5)
        answers = mapped(images).argmax(1)
        layers = attention_layers(mapped, images[:2]).layers
    assert [CIFAR10[n] for n in answers] == [SHUFFLED[n] for n in expected.argmax(1)]
    assert len(layers) == 2 and {layer.heads for layer in layers} == {2}


def test_the_same_folder_elsewhere_is_the_same_function(tmp_path: Path) -> None:
    save_vit(tmp_path / "a")
    save_vit(tmp_path / "b")
    marks = [fingerprint(load_model(str(tmp_path / name), CPU).victim.model) for name in "ab"]
    assert marks[0] == marks[1] and marks[0].unknown == ()


def test_classes_in_the_order_of_the_data_stay_as_they_are(tmp_path: Path) -> None:
    save_vit(tmp_path, names=list(CIFAR10))
    loaded = load_model(str(tmp_path), CPU)
    assert match_labels(loaded.victim, loaded.labels, load_data("cifar10-demo[:4]")) is loaded.victim


@pytest.mark.parametrize(
    ("processing", "mean", "std"),
    [
        ({}, 0.5, 0.5),
        ({"do_normalize": False}, 0.0, 1.0),
        ({"rescale_factor": 1 / 127.5, "do_normalize": False}, 0.0, 0.5),
        ({"do_rescale": False, "image_mean": [127.5] * 3, "image_std": [127.5] * 3}, 0.5, 0.5),
    ],
)
def test_any_rescaling_is_one_normalisation(
    processing: dict[str, object], mean: float, std: float, tmp_path: Path
) -> None:
    save_vit(tmp_path, **processing)
    victim = load_model(str(tmp_path), CPU).victim
    images = torch.randint(0, 256, (2, 3, 32, 32)).float() / 255
    processor = transformers.ViTImageProcessor.from_pretrained(tmp_path)
    pixels = processor(list((images * 255).round().byte()), return_tensors="pt")["pixel_values"]
    assert torch.allclose((images - mean) / std, pixels, atol=1e-5)
    if victim.normalises:
        assert torch.allclose((images - victim.mean) / victim.std, pixels, atol=1e-5)
    else:
        assert torch.allclose(images, pixels, atol=1e-5)


def test_a_folder_without_processor_needs_the_normalisation(tmp_path: Path) -> None:
    save_vit(tmp_path)
    with pytest.raises(UsageError, match="says itself how it normalises"):
        load_model(str(tmp_path), CPU, FileOptions(normalize="half"))
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(UsageError, match="does not say how it normalises: add --normalize"):
        load_model(str(tmp_path), CPU)
    assert load_model(str(tmp_path), CPU, FileOptions(normalize="half")).victim.input_size == 32


def test_weights_that_would_be_random_are_refused(tmp_path: Path) -> None:
    save_vit(tmp_path)
    changed(tmp_path, num_hidden_layers=3)
    with pytest.raises(UsageError, match="does not hold all weights of its classifier .* which would be random"):
        load_model(str(tmp_path), CPU)


def test_a_size_that_the_model_does_not_take_is_told(tmp_path: Path) -> None:
    save_vit(tmp_path, size={"height": 64, "width": 64})
    with pytest.raises(UsageError, match="fails on 64 px images"):
        load_model(str(tmp_path), CPU)


def test_an_architecture_of_another_version_is_told(tmp_path: Path) -> None:
    save_vit(tmp_path)
    changed(tmp_path, architectures=["FutureForImageClassification"])
    with pytest.raises(UsageError, match="has no classifier for: install the version that saved it"):
        load_model(str(tmp_path), CPU)


def test_a_folder_of_timm_is_read(tmp_path: Path) -> None:
    import timm
    from timm.models import save_for_hf

    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=10)
    save_for_hf(model, tmp_path, safe_serialization=True)
    loaded = load_model(str(tmp_path), CPU)
    images = torch.rand(2, 3, 160, 160)
    with frozen(model), torch.no_grad():
        expected = model((images - loaded.victim.mean) / loaded.victim.std)
        assert torch.equal(loaded.victim(images), expected)
    assert loaded.record["source"] == "timm folder" and loaded.victim.num_classes == 10
