"""Misspelt words are answered before torch is imported, whatever the command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MISSPELT = (
    "evall",
    "eval tiny-vti",
    "eval nowhere.py:make_model",
    "eval hf:onlyname",
    "eval tiny-vit pgdd",
    "eval tiny-vit worst(pgd,gamma)",
    "eval tiny-vit pgd --threat l3:2",
    "eval tiny-vit pgd --data cifr10",
    "eval tiny-vit pgd --limt 3",
    "eval nowhere.pt pgd --arch vit_tiny_patch16_224",
    "attacks info pgdd",
    "models info tiny-vti",
    "data info cifr10",
    "bench nowhere",
    "transfer tiny-vti --to tiny-vit",
    "diagnose-softmax tiny-vti",
    "check tiny-vti",
    "train aas-att",
    "analyze epssweep",
    "analyze eps-sweep tiny-vti",
    "analyze eps-sweep tiny-vit atack=pgd",
    "analyze eps-sweep --plot sweep.gif",
    "analyze eps-sweep --threat linf:9000",
)


def test_misspelt_words_load_no_torch(tmp_path: Path) -> None:
    code = f"""
import sys
from vitattack.cli.main import main
for line in {MISSPELT!r}:
    sys.argv = ["vitattack", *line.split()]
    try:
        main()
    except SystemExit as end:
        assert end.code == 2, (line, end.code)
    assert "torch" not in sys.modules, line
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == len(MISSPELT), json.dumps(lines, indent=1)
    assert all(line.startswith("vitattack: ") for line in lines), json.dumps(lines, indent=1)
