"""Rows of every batch, counted, and bulk reading against reading row by row."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from vitattack.core.errors import UsageError
from vitattack.data import load_data
from vitattack.data.formats.array_on_disk import ArrayOnDisk
from vitattack.data.formats.arrays import ArraySource, npz_source
from vitattack.train.data.batch import Shard, centre_crop
from vitattack.train.data.image_stores import InMemoryImages, MappedImages
from vitattack.train.data.streams import MixedStream, ShuffledStream
from vitattack.train.data.training_data import open_training_data
from vitattack.train.recipe import Recipe


def numbered(count: int, first: int = 0) -> tuple[Tensor, Tensor]:
    """Images whose first two pixels spell their number."""
    x = torch.zeros(count, 3, 4, 4, dtype=torch.uint8)
    numbers = torch.arange(first, first + count)
    x[:, 0, 0, 0], x[:, 0, 0, 1] = (numbers % 256).byte(), (numbers // 256).byte()
    return x, numbers % 10


def number_of(x: Tensor) -> list[int]:
    return (x[:, 0, 0, 0].int() + 256 * x[:, 0, 0, 1].int()).tolist()


def mixed(batch_size: int = 20, share: float = 0.7, real: int = 50, seed: int = 0) -> MixedStream:
    return MixedStream(
        InMemoryImages(*numbered(real)),
        InMemoryImages(*numbered(300, 1000)),
        share,
        num_classes=10,
        batch_size=batch_size,
        seed=seed,
    )


@pytest.mark.parametrize(
    ("batch_size", "share", "wanted"), [(20, 0.7, 14), (10, 0.7, 7), (1024, 0.8, 819), (16, 0.3, 4)]
)
def test_every_batch_has_the_exact_share(batch_size: int, share: float, wanted: int) -> None:
    stream = mixed(batch_size, share, real=2000)
    for step in range(min(3, stream.steps)):
        assert int(stream.is_generated.sum()) == wanted == stream.generated_per_batch
        assert len(stream.rows(0, step)[1]) == wanted and len(stream.rows(0, step)[0]) == batch_size - wanted


def test_generated_images_lie_where_they_are_said_to() -> None:
    stream = mixed()
    for step in range(stream.steps):
        batch = stream.batch(2, step)
        assert [n >= 1000 for n in number_of(batch.x)] == stream.is_generated.tolist()
        assert [n % 10 for n in number_of(batch.x)] == batch.y.tolist()


def test_every_real_image_is_used_equally_often() -> None:
    stream = mixed()  # 6 of 50 real images a batch, 3 batches an epoch: 25 batches are three rounds
    assert stream.steps == 3
    seen = Counter(n for k in range(25) for n in number_of(stream.batch(*divmod(k, 3)).x) if n < 1000)
    assert seen == dict.fromkeys(range(50), 3)
    drawn = Counter(n for k in range(400) for n in stream.rows(*divmod(k, 3))[1].tolist())
    assert len(drawn) == 300 and max(drawn.values()) < 45  # 5600 draws of 300: 18.7 each


def test_a_position_decides_the_batch() -> None:
    for stream, again in ((mixed(seed=4), mixed(seed=4)), (plain(), plain())):
        later = again.batch(3, 2).x  # asked for first, as a resumed run does
        for epoch, step in ((0, 0), (3, 1)):
            stream.batch(epoch, step)
        assert torch.equal(stream.batch(3, 2).x, later)
        assert not torch.equal(stream.batch(3, 1).x, later)
    assert not torch.equal(mixed(seed=5).batch(3, 2).x, mixed(seed=4).batch(3, 2).x)


def plain() -> ShuffledStream:
    return ShuffledStream.of_tensors(*numbered(50), num_classes=10, batch_size=12, seed=1)


def test_parts_of_a_batch_are_the_batch() -> None:
    for stream in (mixed(), plain()):
        whole = stream.batch(1, 1)
        parts = [stream.batch(1, 1, Shard(rank, 4)) for rank in range(4)]
        assert torch.equal(torch.cat([p.x for p in parts]), whole.x)
        assert torch.equal(torch.cat([p.y for p in parts]), whole.y)
    for part in [mixed().batch(1, 1, Shard(rank, 4)) for rank in range(4)]:  # 14 of 20: 3 or 4 of 5
        assert sum(n >= 1000 for n in number_of(part.x)) in (3, 4)


def test_an_epoch_of_one_kind_uses_each_image_at_most_once() -> None:
    stream = plain()
    assert stream.steps == 4
    seen = [n for step in range(4) for n in number_of(stream.batch(5, step).x)]
    assert len(set(seen)) == 48 and set(seen) <= set(range(50))


def test_numpy_parts_are_read_in_bulk_as_row_by_row(tmp_path: Path) -> None:
    for number, count in enumerate((7, 5, 9)):
        x, y = numbered(count, 100 * number)
        np.savez(tmp_path / f"{number}.npz", image=x.permute(0, 2, 3, 1).numpy(), label=y.numpy())
    source = npz_source(tmp_path, 10)
    assert isinstance(source._parts[0][0], ArrayOnDisk)
    rows = [20, 0, 6, 7, 11, 12, 3, 3]
    slow, labels = source.read(rows)
    fast, same = source.take(np.array(rows))
    assert fast.dtype == torch.uint8 and torch.equal(fast.float() / 255, slow) and torch.equal(labels, same)
    some = MappedImages(source, (20, 4, 8))
    assert number_of(some.take(np.array([2, 0]))[0]) == [101, 208]
    assert some.digest() != MappedImages(source, (20, 4, 9)).digest()
    floats = ArraySource([(x.numpy() / np.float32(255), y.numpy())], 10, ["floats"])
    assert torch.equal(floats.take(np.array([4, 1]))[0], floats.read([4, 1])[0])


def test_a_recipe_opens_both_streams_and_holds_rows_back(tmp_path: Path) -> None:
    _, y = numbered(300, 1000)
    np.savez(tmp_path / "generated.npz", image=np.zeros((300, 32, 32, 3), np.uint8), label=y.numpy())
    recipe = Recipe("test", "", data="cifar10-demo", validation=100, batch_size=50, seed=3)
    data = open_training_data(recipe)
    assert len(data.x) == len(data.y) == 100 and data.train.steps == 18
    train = torch.cat([data.train.batch(0, step).x for step in range(18)])
    assert train.dtype == torch.uint8
    held = {bytes(image.numpy().tobytes()) for image in data.x}
    assert not held & {bytes(image.numpy().tobytes()) for image in train}
    both = open_training_data(Recipe(**{**vars(recipe), "synthetic": f"npz:{tmp_path}/generated.npz", "share": 0.8}))
    first = both.train.batch(0, 0)
    assert int((first.x.flatten(1).sum(1) == 0).sum()) == 40
    wanted, labels = load_data("cifar10-demo").read(load_data("cifar10-demo").rows)
    assert len(labels) == 1000 and torch.equal(
        torch.bincount(data.y, minlength=10) > 0, torch.ones(10, dtype=torch.bool)
    )
    assert all(any(torch.equal(image, other) for other in (wanted * 255).round().byte()) for image in data.x[:3])


def stored(path: Path, count: int, labels: Tensor) -> str:
    x, _ = numbered(count)
    np.savez(path, image=x.permute(0, 2, 3, 1).numpy(), label=labels.numpy())
    return f"npz:{path}"


def test_rows_held_out_are_not_generated_images_either(tmp_path: Path) -> None:
    text = stored(tmp_path / "one.npz", 100, torch.arange(100) % 10)
    recipe = Recipe(
        "test", arch_kwargs={"num_classes": 10}, data=text, synthetic=text, share=0.5, validation=40, batch_size=20
    )
    data = open_training_data(recipe)
    seen = {n for step in range(90) for n in number_of(data.train.batch(*divmod(step, 3)).x)}
    held = set(number_of(data.x))
    assert len(held) == 40 and not seen & held and len(seen) == 60
    assert data.train.num_classes == 10


def test_files_that_do_not_say_their_classes_are_asked_and_checked(tmp_path: Path) -> None:
    text = stored(tmp_path / "many.npz", 100, torch.arange(100) % 13)
    with pytest.raises(UsageError, match="how many classes it has: arch_kwargs"):
        open_training_data(Recipe("test", data=text, validation=0))
    with pytest.raises(UsageError, match="labels from 0 to 12, the set has 10 classes"):
        open_training_data(Recipe("test", data="cifar10-demo", validation=0, synthetic=text, share=0.5))
    with pytest.raises(UsageError, match=r"generated images: file 'gone.npz'.*without them: synthetic=null share=0"):
        open_training_data(Recipe("test", data="cifar10-demo", validation=0, synthetic="npz:gone.npz", share=0.5))


def test_the_middle_of_images_that_augmentation_cuts() -> None:
    x = torch.arange(6 * 8).view(1, 1, 6, 8)
    assert centre_crop(x, 4)[0, 0, 0].tolist() == [10, 11, 12, 13] and centre_crop(x, 4).shape == (1, 1, 4, 4)
    with pytest.raises(UsageError, match="6 x 8 px are smaller than the 7 px"):
        centre_crop(x, 7)


@pytest.mark.parametrize("changes", [{"share": 0.5}, {"validation": 1000}, {"batch_size": 999, "validation": 10}])
def test_recipes_that_cannot_be_opened_say_why(changes: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        open_training_data(Recipe("test", "", data="cifar10-demo", **{"validation": 100, **changes}))


@pytest.mark.parametrize(("share", "size"), [(0.0, 20), (1.0, 20), (0.01, 20)])
def test_shares_that_leave_one_kind_out_are_refused(share: float, size: int) -> None:
    with pytest.raises(UsageError):
        mixed(size, share)
