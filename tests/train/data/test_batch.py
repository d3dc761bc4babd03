"""Noise and rows belong to a position in the batch, not to the process that works on it."""

from __future__ import annotations

import torch

from vitattack.train.data.batch import Batch, Shard, as_float, batch_rng, prefetched


def test_parts_in_order_are_the_batch() -> None:
    like = torch.empty(8, 3, 4, 4)
    whole = batch_rng(1, 2, 3, 8).child("a").uniform(like, -1, 1)
    parts = [batch_rng(1, 2, 3, 8, Shard(r, 4)).child("a").uniform(like[:2], -1, 1) for r in range(4)]
    assert torch.equal(torch.cat(parts), whole)
    assert float(whole.min()) < -0.9 and float(whole.max()) > 0.9 and float(whole.mean().abs()) < 0.1


def test_each_use_position_and_seed_has_its_own_noise() -> None:
    like = torch.empty(4, 100)
    rngs = [batch_rng(0, 0, 0, 4), batch_rng(1, 0, 0, 4), batch_rng(0, 1, 0, 4), batch_rng(0, 0, 1, 4)]
    drawn = [r.child(name).normal(like) for r in rngs for name in "ab"]
    for i, a in enumerate(drawn):
        for b in drawn[:i]:
            assert float((a * b).mean().abs()) < 0.2
    assert torch.equal(rngs[0].child("a").normal(like), drawn[0])
    assert not torch.equal(drawn[0][0], drawn[0][1])


def test_survivors_keep_their_rows() -> None:
    rng, like = batch_rng(0, 0, 0, 6), torch.empty(6, 5)
    keep = torch.tensor([True, False, True, False, False, True])
    assert torch.equal(rng[keep].uniform(like[:3]), rng.uniform(like)[keep])
    assert rng.scalar() == rng[keep].scalar()


class Counting:
    num_classes, batch_size, steps = 10, 2, 9

    def batch(self, epoch: int, step: int, shard: Shard = Shard()) -> Batch:
        return Batch(torch.tensor([epoch, step]), torch.tensor([shard.rank]))

    def digest(self) -> str:
        return ""


def test_batches_come_in_order_from_any_step_with_any_number_of_workers() -> None:
    for workers in (0, 1, 3):
        found = [batch.x.tolist() for batch in prefetched(Counting(), 4, 5, Shard(1, 2), workers)]
        assert found == [[4, step] for step in range(5, 9)]


def test_bytes_become_pixels() -> None:
    assert torch.equal(as_float(torch.tensor([0, 255], dtype=torch.uint8)), torch.tensor([0.0, 1.0]))
    floats = torch.rand(3)
    assert as_float(floats) is floats
