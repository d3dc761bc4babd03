"""Mistakes in a recipe are refused before torch is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "aas-at-tiny"),
        (["tradez"], "unknown recipe 'tradez': did you mean trades"),
        (["trades", "epoch=2"], "unknown key 'epoch'"),
        (["trades", "epochs=many"], "epochs is a whole number"),
        (["trades", "hooks=ema(0.9),emma"], "hooks: unknown hook 'emma': did you mean ema"),
        (["trades", "objective=tradez(beta=3)"], "objective: unknown objective 'tradez': did you mean trades"),
        (["trades", "rate=cosin"], "rate: unknown learning rate 'cosin': did you mean cosine"),
        (["trades", "--log", "tensorbord"], "did you mean tensorboard"),
    ],
)
def test_lists_and_typos_load_no_torch(words: list[str], message: str) -> None:
    code = (
        "import sys, atexit\n"
        "atexit.register(lambda: print('torch is loaded' if 'torch' in sys.modules else 'no torch'))\n"
        "from vitattack.cli.main import main\n"
        f"sys.argv = ['vitattack', 'train', *{words!r}]\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert message in done.stdout + done.stderr and done.stdout.endswith("no torch\n"), done.stderr
    assert done.returncode == (2 if words else 0)
