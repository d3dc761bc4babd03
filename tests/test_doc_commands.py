"""Every command and every Python block of the documentation is understood by the program, and runs on a few images."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import torch
from PIL import Image
from vitattack.cli.main import cli, main

import vitattack
from tests.doc_blocks import ROOT, Block, blocks
from vitattack.core.files import cache_home

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
EVERY = [block for page in PAGES for block in blocks(page)] if (ROOT / "docs").is_dir() else []
COMMANDS = [(block, words) for block in EVERY for words in block.commands]
PYTHON = [block for block in EVERY if block.language == "python" and block.not_run is None]
QUICK = ("README.md", "index.md", "protocols.md")  # pages whose commands run in every suite
LIGHT = ("extending.md", "reference.md")  # whose Python blocks take seconds
FEW = 2
FEW_FOR = {"cka": 4}  # analyses of at least so many images
LIMITED = ("eval", "check", "curve", "transfer", "analyze", "diagnose-softmax", "verify")
KEYS = ("239a1e56", "77b0c2d1")  # that pages write for the keys of runs
BENCH = """\
schema: 1
title: Two attacks
data: cifar10-demo[:2]
threats: [linf:8/255]
models: [tiny-vit]
attacks: [fgsm, pgd(steps=2)]
"""

pytestmark = pytest.mark.skipif(not EVERY, reason="needs the checkout")


def parsed(words: tuple[str, ...]) -> None:
    """Let the program read a command line without running it; raises what it would say to a wrong one."""
    command: click.Command = cli
    rest, ctx = list(words), None
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        ctx = click.Context(command, parent=ctx, info_name=command.name)
        found = command.get_command(ctx, rest[0])
        if found is None:
            break
        command, rest = found, rest[1:]
    if "..." not in " ".join(rest):
        command.make_context(words[0], rest, parent=ctx)


@pytest.mark.parametrize(
    ("block", "words"), COMMANDS, ids=[f"{block.name} {' '.join(words)[:60]}" for block, words in COMMANDS]
)
def test_the_program_understands_the_command(block: Block, words: tuple[str, ...], tmp_path: Path) -> None:
    with chdir(tmp_path):
        try:
            parsed(words)
        except click.exceptions.Exit as left:  # --help and --version
            assert left.exit_code == 0
        except click.ClickException as error:
            pytest.fail(f"{block.name}: vitattack {' '.join(words)}: {error.format_message()}")


def test_what_is_not_run_says_so() -> None:
    """Other programs, and Python that is not fenced, stand below a comment with the reason."""
    starts = ("python ", "$ python", "OMP_", "pip ", "make ", "torchrun ", "sbatch ", "kubectl ", "import ")
    silent = [each for each in EVERY if not each.commands and not each.not_run and each.language != "python"]
    assert not [each.name for each in silent if each.text.startswith(starts)]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the pages take for granted: runs, a checkpoint, images, examples made elsewhere, a benchmark."""
    folder = tmp_path_factory.mktemp("documented")
    (folder / "home").mkdir()
    x, y = (each.numpy() for each in _images())
    np.savez(folder / "adv.npz", x_adv=x, label=y, index=np.arange(FEW))
    (folder / "pngs").mkdir()
    for number, image in enumerate((x * 255).round().astype("uint8")):
        Image.fromarray(image.transpose(1, 2, 0)).save(folder / "pngs" / f"{number:06}.png")
        for kind in "ab":
            (folder / "val" / kind).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.transpose(1, 2, 0)).save(folder / "val" / kind / f"{number}.png")
    state = vitattack.load_model("tiny-vit", device="cpu").model.state_dict()
    from safetensors.torch import save_file

    save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / "mine.safetensors")
    (folder / "my.yaml").write_text(BENCH)
    settings: dict[str, Any] = {"limit": FEW, "threads": 1, "out": folder / "runs", "certificate": False}
    for threat in ("linf:2/255", "linf:4/255"):
        vitattack.evaluate("tiny-vit", "fgsm", threat=threat, **settings)
    for model in ("tiny-vit-standard", "tiny-vit"):  # the last run is of the model that pages verify examples on
        vitattack.evaluate(model, ["pgd", "auto"], save_adv=model == "tiny-vit", **settings)
    shutil.copytree(folder / "runs", folder / "other" / "runs")
    return folder


def _images() -> tuple[torch.Tensor, torch.Tensor]:
    data = vitattack.load_data("cifar10-demo", limit=FEW)
    return data.read(data.rows)


@pytest.fixture
def workshop(stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Runs a command of a page on few images in a copy of that folder; what it prints."""
    shutil.copytree(stored, tmp_path / "here")
    monkeypatch.setenv("VITATTACK_HOME", str(tmp_path / "here" / "home"))
    monkeypatch.setenv("VITATTACK_THREADS", "1")
    monkeypatch.setattr(click, "launch", lambda url, **how: 0)  # no browser, not even where a machine has one
    monkeypatch.chdir(tmp_path / "here")
    keys = [run.short for run in vitattack.runs("runs")]

    def run(words: tuple[str, ...], capture: pytest.CaptureFixture[str]) -> str:
        text = "\0".join(words)
        for written, key in zip(KEYS, keys, strict=False):
            text = text.replace(written, key)
        few = FEW_FOR.get(words[1] if len(words) > 1 else "", FEW)
        text = re.sub(r"--limit\0\d+", f"--limit\0{few}", re.sub(r"\[:\d+\]", f"[:{few}]", text))
        text = re.sub(r"--claim\0\d+/\d+", f"--claim\0{few - 1}/{few}", text)
        given = text.split("\0")
        narrowed = any("[" in word and "]" in word for word in given) or "--limit" in given or "info" in given
        if given[0] in LIMITED and not narrowed and given[1:2] != ["scatter"] and given[1:2] != ["scaling"]:
            given += ["--limit", str(FEW)]
        monkeypatch.setattr(sys, "argv", ["vitattack", *given, *(["--quiet"] if given[0] in LIMITED else [])])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capture.readouterr()
        accepted = (0, 3, 4) if given[0] == "check" else (0,)
        assert int(left.value.code or 0) in accepted, f"vitattack {' '.join(given)}: {err[-600:]}"
        return out

    yield run


def _run(block: Block, run: Callable[..., str], capture: pytest.CaptureFixture[str]) -> None:
    for line, words in zip(
        [line for line in block.text.replace("\\\n", " ").splitlines() if "vitattack " in line[:12]],
        block.commands,
        strict=True,
    ):
        out = run(words, capture)
        if target := re.search(r" > (\S+)", line.partition("  #")[0]):
            Path(target[1]).write_text(out)
        elif "--json" in words:
            json.loads(out)


def _to_run(quick: bool) -> list[Block]:
    run = [block for block in EVERY if block.commands and block.not_run is None]
    return [block for block in run if (block.page.name in QUICK) == quick]


@pytest.mark.parametrize("block", _to_run(True), ids=lambda block: block.name)
def test_the_commands_of_the_first_pages_run(
    block: Block, workshop: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    _run(block, workshop, capfd)


@pytest.mark.slow
@pytest.mark.parametrize("block", _to_run(False), ids=lambda block: block.name)
def test_the_commands_of_the_other_pages_run(
    block: Block, workshop: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    if block.page.name == "results.md":  # which shows what other commands wrote
        Path("softmax.json").write_text(json.dumps(vitattack.diagnose("tiny-vit", limit=FEW).json()))
        Path("check.json").write_text(json.dumps(vitattack.check("tiny-vit", data=f"cifar10-demo[:{FEW}]").json()))
    _run(block, workshop, capfd)


@pytest.mark.parametrize(
    "block",
    [pytest.param(each, marks=() if each.page.name in LIGHT else pytest.mark.slow, id=each.name) for each in PYTHON],
)
def test_python_blocks_run(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a module and a few images in place of those of the reader; what they register is forgotten again."""
    from tests.test_named import registered

    monkeypatch.chdir(tmp_path)
    assert cache_home().name
    x, y = _images()
    model = vitattack.load_model("tiny-vit", device="cpu")
    code = block.text.replace("limit=32", f"limit={FEW}").replace("limit=8", f"limit={FEW}")
    with registered():
        exec(
            compile(code, block.name, "exec"),
            {"__name__": "page", "module": model.model, "x": x, "y": y, "x_other": 1 - x, "y_other": y, "model": model},
        )
