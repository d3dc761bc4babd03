"""CLIP models of the zoo with the texts of other data sets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vitattack.core.errors import UsageError
from vitattack.models.weights.sources import WeightSources
from vitattack.models.zoo.catalogue import zoo_entries
from vitattack.models.zoo.file_options import FileOptions
from vitattack.models.zoo.names import check_model_name, options_by_model
from vitattack.models.zoo.other_texts import with_texts

FARE = zoo_entries()["robustvlm/fare4-clip"]
CARS = {"class_names": "wds-cars", "prompts": "wds-cars"}


def test_other_texts_make_an_entry_of_other_classes_without_published_numbers() -> None:
    cars = with_texts(FARE, CARS)
    assert (cars.num_classes, cars.input, cars.transform, cars.reported) == (196, 224, FARE.transform, ())
    small = with_texts(FARE, {"class_names": "wds-stl10", "native_size": 96})
    assert (small.num_classes, small.input, small.transform) == (10, 96, "none")
    assert small.arch_kwargs["prompts"] == "openai-80"
    assert with_texts(FARE, {}) is FARE


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        ("tiny-vit", CARS, "'tiny-vit' states its architecture itself: drop --arch-kwargs"),
        ("robustvlm/fare4-clip", {"layers": 3}, "may set class_names, prompts, native_size, not layers"),
        ("robustvlm/fare4-clip", {"class_names": "wds-car"}, "unknown list of class names 'wds-car': did you mean"),
        ("robustvlm/fare4-clip", ["wds-cars"], "arch_kwargs are keys and values"),
    ],
)
def test_mistakes_are_answered_in_one_line(model: str, arguments: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        check_model_name(model, FileOptions(arch_kwargs=arguments))
    assert "\n" not in str(caught.value)


def test_of_several_models_those_of_clip_get_the_texts() -> None:
    options = FileOptions(arch_kwargs=CARS)
    assert options_by_model(["robustvlm/fare4-clip", "tiny-vit"], options) == {
        "robustvlm/fare4-clip": options,
        "tiny-vit": FileOptions(),
    }
    with pytest.raises(UsageError, match="describe a checkpoint file, and none is named"):
        options_by_model(["tiny-vit", "tiny-vit-standard"], options)


def test_a_benchmark_may_name_the_texts(tmp_path: Path) -> None:
    from vitattack.bench.read.benchmark_file import read_benchmark

    text = (
        "schema: 1\ntitle: cars\nsource: none\ndata: clip-zeroshot-13/cars\nthreats: [linf:2/255]\nattacks: [pgd]\n"
        "models: [{model: robustvlm/fare4-clip, arch_kwargs: {class_names: CLASSES, prompts: wds-cars}}]\n"
    )
    file = tmp_path / "cars.yaml"
    file.write_text(text.replace("CLASSES", "wds-cars"))
    assert read_benchmark(str(file)).models[0].options == {"arch_kwargs": CARS}
    file.write_text(text.replace("CLASSES", "wds-pets"))
    with pytest.raises(UsageError, match="has 37 classes, the data has 196"):
        read_benchmark(str(file))


def test_the_head_is_that_of_the_texts(tmp_path: Path) -> None:
    open_clip = pytest.importorskip("open_clip")
    from tests.models.clip.test_zero_shot import CONFIG, NAME
    from vitattack.models.zoo.load import load_entry

    if NAME not in open_clip.list_models():
        import json

        (tmp_path / f"{NAME}.json").write_text(json.dumps(CONFIG))
        open_clip.add_model_config(tmp_path / f"{NAME}.json")
    import torch

    clip = open_clip.create_model(NAME, pretrained=None, load_weights=False)
    torch.save(clip.state_dict(), tmp_path / "clip.pt")
    entry = replace(FARE, arch=f"open_clip:{NAME}", input=64, weights=WeightSources((f"file:{tmp_path / 'clip.pt'}",)))
    for name, size in (("wds-pets", None), ("wds-stl10", 32)):
        texts = {"class_names": name, "prompts": name} | ({"native_size": size} if size else {})
        loaded = load_entry(with_texts(entry, texts))
        x = torch.rand(2, 3, size or 64, size or 64)
        assert loaded.victim(x).shape == (2, loaded.victim.num_classes)
        assert loaded.victim.num_classes == (10 if size else 37)
        assert loaded.record["zero_shot"]["prompts"] == (2 if size else 1)


def test_a_missing_open_clip_is_named_before_anything_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitattack.models.architectures.names.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs open_clip, which is not installed: pip install 'vitattack\[clip\]'"):
        check_model_name("robustvlm/fare4-clip")
