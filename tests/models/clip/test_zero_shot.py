"""CLIP models as classifiers give open_clip's own similarities."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vitattack.core.errors import UsageError
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.attention.rescaled import Rescaled
from vitattack.models.clip.folder import register_folder
from vitattack.models.clip.texts import read_texts
from vitattack.models.clip.zero_shot import ZeroShot
from vitattack.models.digest import fingerprint
from vitattack.models.normalise import NORMALISERS
from vitattack.models.victim import frozen
from vitattack.models.zoo.catalogue import zoo_entries
from vitattack.models.zoo.file_options import FileOptions
from vitattack.models.zoo.load import load_model
from vitattack.text.class_lists import CIFAR10

open_clip = pytest.importorskip("open_clip")
CPU = torch.device("cpu")
NAME = "tiny-clip-for-tests"
CONFIG = {
    "embed_dim": 24,
    "vision_cfg": {"image_size": 64, "layers": 2, "width": 64, "patch_size": 16, "head_width": 32},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1},
}
ASKED = {"class_names": "cifar10", "prompts": ["a photo of a {}.", "art of a {}."]}


@pytest.fixture(scope="module", autouse=True)
def registered(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("clip") / f"{NAME}.json"
    path.write_text(json.dumps(CONFIG))
    open_clip.add_model_config(path)


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Any]:
    """A random CLIP model and its checkpoint."""
    torch.manual_seed(0)
    clip = open_clip.create_model(NAME, pretrained=None, load_weights=False).eval()
    for parameter in clip.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(std=parameter[0].numel() ** -0.5)
    torch.save(
        {"state_dict": {f"module.{key}": value for key, value in clip.state_dict().items()}}, tmp_path / "clip.pt"
    )
    return tmp_path / "clip.pt", clip


def load(path: Path, **arguments: Any) -> Any:
    options = FileOptions(arch=f"open_clip:{NAME}", arch_kwargs={**ASKED, **arguments}, normalize="clip")
    return load_model(str(path), CPU, options)


def expected(clip: Any, images: Tensor) -> Tensor:
    """Logits as open_clip's examples compute them, the mean over prompts as in its zero-shot classifier."""
    tokenize = open_clip.get_tokenizer(NAME)
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in NORMALISERS["clip"] or ())
    with torch.no_grad():
        tower = nn.functional.normalize(clip.encode_image((images - mean) / std), dim=-1)
        rows = []
        for name in CIFAR10:
            texts = clip.encode_text(tokenize([f"a photo of a {name}.", f"art of a {name}."]))
            rows.append(nn.functional.normalize(nn.functional.normalize(texts, dim=-1).mean(0), dim=-1))
        similarity: Tensor = clip.logit_scale.exp() * tower @ torch.stack(rows).T
    return similarity


def test_logits_are_those_of_open_clip(saved: tuple[Path, Any]) -> None:
    path, clip = saved
    loaded = load(path)
    images = torch.rand(16, 3, 64, 64)
    with frozen(loaded.victim), torch.no_grad():
        logits = loaded.victim(images)
    theirs = expected(clip, images)
    assert torch.allclose(logits, theirs, atol=1e-5, rtol=1e-5) and theirs.std() > 0.01
    assert torch.equal(logits.argmax(1), theirs.argmax(1))
    told = loaded.record["zero_shot"]
    assert (told["classes"], told["prompts"]) == (10, 2) and len(told["prompts_sha256"]) == 64
    assert loaded.victim.input_size == 64
    assert all(".visual." in name for name, _ in loaded.victim.named_parameters())  # the text tower is gone


def test_the_head_comes_from_the_cache_and_belongs_to_its_texts(
    saved: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = saved
    first = load(path)
    monkeypatch.setattr(ZeroShot, "_embedded", lambda *_: pytest.fail("computed again"))
    again = load(path)
    assert fingerprint(first.victim) == fingerprint(again.victim)
    with pytest.raises(pytest.fail.Exception, match="computed again"):
        load(path, prompts="photo")


def test_other_texts_are_another_model(saved: tuple[Path, Any]) -> None:
    path, _ = saved
    one, two = load(path), load(path, prompts="robustvlm")
    assert one.record["zero_shot"]["prompts_sha256"] != two.record["zero_shot"]["prompts_sha256"]
    assert fingerprint(one.victim) != fingerprint(two.victim)


def test_small_images_are_enlarged_inside(saved: tuple[Path, Any]) -> None:
    path, clip = saved
    loaded = load(path, native_size=32)
    images = torch.rand(4, 3, 32, 32)
    enlarged = nn.functional.interpolate(images, size=64, mode="bicubic", align_corners=False)
    with frozen(loaded.victim), torch.no_grad():
        assert torch.allclose(loaded.victim(images), expected(clip, enlarged), atol=1e-4)
    assert loaded.victim.input_size == 32


def test_attention_of_the_tower_is_found_and_scaled(saved: tuple[Path, Any]) -> None:
    victim = load(saved[0]).victim
    images = torch.rand(2, 3, 64, 64)
    with frozen(victim), torch.no_grad():
        layers = attention_layers(victim, images).layers
        assert len(layers) == 2 and {layer.heads for layer in layers} == {2}
        plain = victim(images)
        assert torch.equal(Rescaled(victim, torch.ones(2))(images), plain)
        assert (Rescaled(victim, torch.full((2,), 0.5))(images) - plain).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"class_names": None}, "classifies by texts: add --arch-kwargs"),
        ({"class_names": "cifar"}, "unknown list of class names 'cifar': did you mean cifar10"),
        ({"class_names": ["a", 3]}, "class_names must be 1 to 100,000 texts"),
        ({"class_names": []}, "class_names must be 1 to 100,000 texts"),
        ({"prompts": ["a photo"]}, "the prompt 'a photo' has no place for the class: write {} there"),
        ({"prompts": "openai"}, "unknown list of prompts 'openai': did you mean openai-"),
        ({"native_size": "32"}, "native_size is the side of images in px"),
        ({"other": 1}, "cannot be built .* check --arch-kwargs"),
    ],
)
def test_mistakes_are_answered_in_one_line(saved: tuple[Path, Any], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load(saved[0], **arguments)
    assert "\n" not in str(caught.value)


def test_misspelt_towers_are_answered(saved: tuple[Path, Any]) -> None:
    options = FileOptions(arch="open_clip:ViT-B-33", arch_kwargs=ASKED, normalize="clip")
    with pytest.raises(UsageError, match="unknown CLIP architecture 'ViT-B-33': did you mean ViT-B-32"):
        load_model(str(saved[0]), CPU, options)


def test_named_lists_are_whole() -> None:
    texts = read_texts("imagenet", "openai-80")
    assert (len(texts.classes), len(texts.prompts)) == (1000, 80)
    assert "a bad photo of a tench." in texts.of(texts.classes[0])


def test_the_zoo_names_towers_that_open_clip_has() -> None:
    named = {
        e.arch.removeprefix("open_clip:") for e in zoo_entries().values() if (e.arch or "").startswith("open_clip:")
    }
    assert len(named) == 4 and named <= set(open_clip.list_models())


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[bos]", "[eos]", "a", "photo", "of", ".", "air", "##plane", "cat", "##s", "plane"]


def folder_of(root: Path, **text: Any) -> Path:
    """A folder as Double Visual Defense publishes its models: with a vocabulary of its own."""
    root.mkdir()
    towers = {
        **CONFIG,
        "text_cfg": {**CONFIG["text_cfg"], "vocab_size": 32, "context_length": 12, "vocab_path": "x", **text},
    }
    (root / "open_clip_config.json").write_text(json.dumps({"model_cfg": towers}))
    (root / "vocab.txt").write_text("\n".join(WORDS))
    return root


def test_a_folder_states_towers_and_vocabulary(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    name, tokenize = register_folder(open_clip, folder_of(tmp_path / "clip"))
    assert tokenize is not None and tokenize(["A photo of AIRPLANE cats."]).tolist() == [
        [3, 5, 6, 7, 9, 10, 11, 12, 8, 4, 0, 2]
    ]
    assert tokenize(["a " * 40, "dog"]).tolist() == [[3, *[5] * 9, 4, 2], [3, 1, 4, *[0] * 8, 2]]
    clip = open_clip.create_model(name, pretrained=None, load_weights=False).eval()
    torch.save(clip.state_dict(), tmp_path / "clip.pt")
    options = FileOptions(arch=f"open_clip:{tmp_path / 'clip'}", arch_kwargs=ASKED, normalize="clip")
    loaded = load_model(str(tmp_path / "clip.pt"), CPU, options)
    rows = []
    with torch.no_grad():
        for label in CIFAR10:
            texts = clip.encode_text(tokenize([f"a photo of a {label}.", f"art of a {label}."]), normalize=True)
            rows.append(nn.functional.normalize(texts.mean(0), dim=-1))
        assert torch.allclose(loaded.victim.model.head, clip.logit_scale.exp() * torch.stack(rows), atol=1e-5)


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda root: (root / "vocab.txt").write_text("[PAD]\n[UNK]"), r"vocab.txt has no \[bos\]"),
        (lambda root: (root / "vocab.txt").unlink(), "vocab.txt' .* fetch the whole repository"),
        (lambda root: (root / "open_clip_config.json").write_text("[]"), "does not describe a model of open_clip"),
        (lambda root: (root / "open_clip_config.json").write_text("[" * 10**5), "does not describe a model"),
        (lambda root: (root / "open_clip_config.json").unlink(), "cannot read .*open_clip_config.json"),
    ],
)
def test_folders_that_are_not_whole(tmp_path: Path, break_it: Any, message: str) -> None:
    break_it(folder_of(tmp_path / "clip"))
    with pytest.raises(UsageError, match=message):
        register_folder(open_clip, tmp_path / "clip")
    with pytest.raises(UsageError, match="asks for hf_model_name roberta"):
        register_folder(open_clip, folder_of(tmp_path / "other", hf_model_name="roberta"))
