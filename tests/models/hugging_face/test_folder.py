"""Model folders that are read, and those that are refused before torch is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vitattack.core.errors import UsageError
from vitattack.models.hugging_face.folder import read_model_folder
from vitattack.models.zoo.file_options import FileOptions
from vitattack.models.zoo.names import check_model_name

CONFIG = {
    "architectures": ["ViTForImageClassification"],
    "model_type": "vit",
    "id2label": {"0": "cat", "1": "dog"},
}


def folder(tmp_path: Path, config: object = CONFIG, *, weights: str = "model.safetensors") -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    if weights:
        (path / weights).write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    return path


def test_a_folder_says_what_it_is(tmp_path: Path) -> None:
    path = folder(tmp_path)
    (path / "preprocessor_config.json").write_text("{}")
    read = read_model_folder(path)
    assert (read.kind, read.architecture, read.labels) == ("transformers", "ViTForImageClassification", ("cat", "dog"))
    assert read.processor == path / "preprocessor_config.json" and read.weights == (path / "model.safetensors",)
    assert {path / "config.json", path / "adapter_config.json", path / "model.safetensors"} <= set(read.files)


def test_placeholders_are_no_names(tmp_path: Path) -> None:
    path = folder(tmp_path, {**CONFIG, "id2label": {"0": "LABEL_0", "1": "LABEL_1"}})
    assert read_model_folder(path).labels is None


MILLION = "{" + ",".join(f'"{n}":"x"' for n in range(1_000_000)) + "}"
REFUSED = {
    "auto_map": (
        {**CONFIG, "auto_map": {"AutoModel": "own.py--Model"}},
        "names Python code of its own, which is never run",
    ),
    "code deeper": ({**CONFIG, "vision_config": {"auto_map": {"x": "y"}}}, "names Python code of its own"),
    "kernel": ({**CONFIG, "_attn_implementation": "kernels-community/flash"}, "asks for a kernel from the hub"),
    "quantised": ({**CONFIG, "quantization_config": {"bits": 4}}, "is quantised"),
    "other weights": ({**CONFIG, "transformers_weights": "../../x.safetensors"}, "names a weights file of its own"),
    "timm file": ({**CONFIG, "model_args": {"checkpoint_path": "/x"}}, "sets checkpoint_path of timm"),
    "timm hub": ({"architecture": "hf-hub:a/b", "num_classes": 2}, "which timm does not have"),
    "backbone": (
        {**CONFIG, "architectures": ["ViTModel"]},
        "gives no logits for pixels: save a ...ForImageClassification",
    ),
    "tokens": ({**CONFIG, "architectures": ["ImageGPTForImageClassification"]}, "gives no logits for pixels"),
    "no class": ({"model_type": "vit"}, "does not say its architecture"),
    "gaps": ({**CONFIG, "id2label": {"0": "a", "2": "b"}}, "does not number its classes from 0 on"),
    "a million labels": ('{"id2label": ' + MILLION + "}", "more than 8,388,608: it is refused"),
    "many labels": ({**CONFIG, "id2label": {str(n): "x" for n in range(100_001)}}, "names 100,001 classes"),
    "twice": ('{"model_type": "a", "model_type": "b"}', "a name stands twice"),
    "deep": ("[" * 100_000, "is not readable JSON"),
    "a list": ("[1]", "is no JSON object"),
    "bytes": ("\udcff", "is not readable JSON"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_configuration_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    config, message = REFUSED[name]
    path = folder(tmp_path, config if name != "bytes" else "{}")
    if name == "bytes":
        (path / "config.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(UsageError) as caught:
        read_model_folder(path)
    assert message in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_adapters_pickles_and_missing_weights_are_refused(tmp_path: Path) -> None:
    path = folder(tmp_path, weights="pytorch_model.bin")
    with pytest.raises(UsageError, match="pickled weights .* only safetensors are read"):
        read_model_folder(path)
    (path / "pytorch_model.bin").unlink()
    with pytest.raises(UsageError, match=r"has no model.safetensors: save the whole model"):
        read_model_folder(path)
    (path / "adapter_config.json").write_text("{}")
    with pytest.raises(UsageError, match="holds an adapter, which is no model by itself: merge it"):
        read_model_folder(path)
    with pytest.raises(UsageError, match=r"has no config.json, so that it is no model"):
        read_model_folder(tmp_path)


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ({"w": "../../secret.safetensors"}, "no file beside it"),
        ({"w": "/etc/passwd"}, "no file beside it"),
        ({"w": "model-1.safetensors"}, "lacks model-1.safetensors, which its index lists"),
        ({}, "lists no weights file"),
        (["model-1.safetensors"], "lists no weights file"),
    ],
)
def test_an_index_names_files_beside_it_alone(listed: object, message: str, tmp_path: Path) -> None:
    path = folder(tmp_path, weights="")
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
    with pytest.raises(UsageError, match=message):
        read_model_folder(path)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("model", FileOptions(arch="vit_tiny_patch16_224"), "--arch describes a checkpoint file, 'model' is none"),
        ("model", FileOptions(arch_kwargs={"depth": 3}), "may only choose its attention kernel"),
        ("model", FileOptions(normalize="nonsense"), "normalize 'nonsense' is not understood"),
        ("hf:only", FileOptions(), "write hf-hub:OWNER/NAME"),
        ("hf:a/b/model.safetensors", FileOptions(), "names a file of a repository: write hf:a/b"),
    ],
)
def test_options_that_a_folder_states_itself_are_refused(
    text: str, options: FileOptions, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        check_model_name(text, options)


def test_folders_are_checked_without_torch_and_transformers(tmp_path: Path) -> None:
    path = folder(tmp_path)
    code = f"""
import sys
from vitattack.models.zoo.names import check_model_name
assert (check_model_name({str(path)!r}), check_model_name("hf:a/b")) == ("folder", "hub")
assert not {{"torch", "timm", "numpy", "transformers", "huggingface_hub"}} & set(sys.modules), "slow"
"""
    pytest.importorskip("transformers")
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_library_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder(tmp_path)
    monkeypatch.setattr("vitattack.models.hugging_face.folder.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"not installed: pip install 'vitattack\[transformers\]'"):
        check_model_name(str(path))
