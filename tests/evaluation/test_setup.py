"""Settings of an evaluation: one list of fields, checked once for all callers."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from typing import Any

import pytest
from torch import Tensor

from tests.conftest import tiny_vit
from vitattack.core.errors import UsageError
from vitattack.evaluation.evaluate import evaluate
from vitattack.evaluation.setup import Setup, SetupFields
from vitattack.evaluation.transfer.study import transfer

Images = tuple[Tensor, Tensor]


def test_every_field_may_be_given_as_a_keyword() -> None:
    assert list(SetupFields.__annotations__) == [field.name for field in fields(Setup)]
    assert [kind.__forward_arg__ for kind in SetupFields.__annotations__.values()] == [f.type for f in fields(Setup)]


def test_a_setup_and_its_fields_give_the_same_run(toy_images: Images) -> None:
    setup = Setup(data=toy_images, batch_size=4, threads=1)
    whole = evaluate(tiny_vit().model, "pgd(steps=2)", threat="linf:0.002", setup=setup)
    parts = evaluate(tiny_vit().model, "pgd(steps=2)", threat="linf:0.002", data=toy_images, batch_size=4, threads=1)
    assert whole.job == parts.job and list(whole.results[0].records) == list(parts.results[0].records)
    changed = evaluate(tiny_vit().model, "pgd(steps=2)", threat="linf:0.002", setup=setup, seed=3)
    assert changed.job.seed == 3 and changed.job.batch_size == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch size 0"),
        ({"threads": 0}, "0 threads"),
        ({"seed": -1}, "seed -1"),
        ({"seed": 2**63}, "seed 9223372036854775808 is out of range"),
        ({"seed": 2**64}, "seed 18446744073709551616 is out of range"),
        ({"shard": (2, 2)}, "shard 2/2"),
        ({"shard": (0, 99_999_999_999)}, "99999999999 shards are too many: cut the run into at most 4096"),
        ({"limit": 0}, "limit 0"),
        ({"precision": "fp16"}, "unknown precision 'fp16'"),
        ({"transform": "crop224"}, "a transform is for folder"),
    ],
)
def test_a_mistake_is_refused_where_the_setup_is_made(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Setup(**settings)


def test_transfer_takes_no_shard_and_no_other_precision() -> None:
    for settings in (Setup(shard=(0, 2)), Setup(precision="bf16-search")):
        with pytest.raises(UsageError, match="drop the shard and the precision"):
            transfer(["tiny-vit"], setup=settings)


def test_a_setup_is_made_without_torch() -> None:
    code = "import sys, json; from vitattack.evaluation.setup import Setup; Setup(seed=3).job(model='m', data='d', \
weights='w', pixels='p', device='cpu'); print(json.dumps('torch' in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) is False
