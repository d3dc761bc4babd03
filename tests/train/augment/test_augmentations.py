"""Augmentations against loops over single images, torchvision, and the range of pixels."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.transforms import functional as vision

from tests.conftest import toy_pictures
from vitattack.core.errors import UsageError
from vitattack.train.augment.base import uniform_draws
from vitattack.train.augment.geometry import Crop, Flip, ResizedCrop, Rotation
from vitattack.train.augment.mixup import MixUp
from vitattack.train.augment.pixels import Erasing, Jitter
from vitattack.train.augment.randaugment import RandAugment
from vitattack.train.data.batch import BatchRng, Shard, batch_rng
from vitattack.train.recipe_part_names import AUGMENTATIONS

Y = torch.arange(12) % 10


def rng(size: int = 12, shard: Shard = Shard()) -> BatchRng:
    return batch_rng(3, 1, 2, size, shard)


def pictures() -> Tensor:
    return (toy_pictures() * 255).round().to(torch.uint8)


@pytest.mark.parametrize("name", sorted(AUGMENTATIONS))
def test_every_augmentation_repeats_itself_and_stays_in_range(name: str) -> None:
    augment = AUGMENTATIONS[name]()
    for x in (pictures(), toy_pictures()):
        before = x.clone()
        state = torch.get_rng_state()
        one, labels = augment(x, Y, rng())
        two, _ = augment(x, Y, rng())
        assert torch.equal(one, two) and torch.equal(x, before) and torch.equal(torch.get_rng_state(), state)
        other, _ = augment(x, Y, batch_rng(3, 1, 3, 12))
        assert not torch.equal(one, other)
        assert one.shape == x.shape and len(labels) == 12
        if one.is_floating_point():
            assert float(one.min()) >= 0 and float(one.max()) <= 1


@pytest.mark.parametrize(
    "augment", [Crop(), Flip(), ResizedCrop(), Rotation(10), Jitter(), Erasing(share=1), RandAugment()]
)
def test_a_part_of_a_batch_is_augmented_as_in_the_whole(augment: Crop) -> None:
    x = pictures()
    whole, _ = augment(x, Y, rng())
    for rank in range(2):
        part = Shard(rank, 2)
        rows = slice(rank * 6, rank * 6 + 6)
        assert torch.equal(augment(x[rows], Y[rows], rng(12, part))[0], whole[rows])


def test_crop_and_flip_are_those_of_a_loop() -> None:
    x = pictures()
    out, _ = Crop(4)(x, Y, rng())
    offsets = (uniform_draws(rng().child("crop"), x, 2) * 9).long()
    for image, (top, left), got in zip(x, offsets.tolist(), out, strict=True):
        assert torch.equal(F.pad(image, (4, 4, 4, 4))[:, top : top + 32, left : left + 32], got)
    assert out.dtype == torch.uint8
    many = torch.zeros(4000, 1, 1, 1)
    drawn = (uniform_draws(batch_rng(0, 0, 0, 4000), many, 2) * 9).long()
    counts = torch.bincount(drawn.flatten(), minlength=9)
    assert counts.min() > 800 and counts.max() < 980 and len(counts) == 9  # each of nine about 889 times
    flipped, _ = Flip()(x, Y, rng())
    same = [torch.equal(a, b) for a, b in zip(flipped, x, strict=True)]
    mirrored = [torch.equal(a, b.flip(2)) for a, b in zip(flipped, x, strict=True)]
    assert all(a != b for a, b in zip(same, mirrored, strict=True)) and 0 < sum(same) < 12
    assert torch.equal(Flip(1.0)(x, Y, rng())[0], x.flip(3))


def test_resized_crop_of_everything_is_the_image_and_of_a_quarter_an_enlarged_part() -> None:
    x = toy_pictures()
    same, _ = ResizedCrop(scale=(1, 1), ratio=(1, 1))(x, Y, rng())
    torch.testing.assert_close(same, x, atol=1e-5, rtol=0)
    ramp = torch.linspace(0.2, 0.8, 32).expand(8, 3, 32, 32)
    out, _ = ResizedCrop(scale=(0.25, 0.25), ratio=(1, 1))(ramp, Y[:8], rng(8))
    slope = out[:, 0, 5, 20] - out[:, 0, 5, 10]
    # half the width fills all of it, so the ramp is half as steep
    torch.testing.assert_close(slope, torch.full((8,), 0.5 * 10 * 0.6 / 31), atol=1e-5, rtol=0)
    assert ResizedCrop(size=16)(x, Y, rng())[0].shape == (12, 3, 16, 16)


def test_rotation_is_torchvisions() -> None:
    x = toy_pictures()
    out, _ = Rotation(20)(x, Y, rng())
    angles = 20 * (2 * uniform_draws(rng().child("rotation"), x, 1)[:, 0] - 1)
    for image, angle, got in zip(x, angles.tolist(), out, strict=True):
        wanted = vision.rotate(image, angle, vision.InterpolationMode.BILINEAR)
        assert float((got - wanted).abs()[:, 4:28, 4:28].max()) < 1e-4


def test_jitter_is_torchvisions() -> None:
    x = toy_pictures()
    out, _ = Jitter(0.4)(x, Y, rng())
    factors = 1 + 0.4 * (2 * uniform_draws(rng().child("jitter"), x, 3) - 1)
    for image, (b, c, s), got in zip(x, factors.tolist(), out, strict=True):
        wanted = vision.adjust_brightness(image, b)
        wanted = vision.adjust_saturation(vision.adjust_contrast(wanted, c), s)
        torch.testing.assert_close(got, wanted, atol=2e-4, rtol=0)  # torchvision rounds the weights of grey


def test_erasing_erases_one_rectangle_of_the_area_asked_for() -> None:
    x = torch.full((200, 3, 32, 32), 0.5)
    y = torch.zeros(200, dtype=torch.long)
    out, _ = Erasing(share=0.25, scale=(0.1, 0.1), ratio=(0.5, 2), fill="black")(x, y, rng(200))
    gone = (out == 0).all(1)
    hit = gone.flatten(1).any(1)
    assert 30 < int(hit.sum()) < 70
    for mask in gone[hit]:
        rows, cols = mask.any(1), mask.any(0)
        assert int(mask.sum()) == int(rows.sum()) * int(cols.sum())  # a full rectangle
        assert abs(float(mask.float().mean()) - 0.1) < 0.03


def test_randaugment_bears_its_strongest_level() -> None:
    """Level 10 of posterising keeps no bit: the picture is black, where newer versions of Pillow raise an error."""
    strongest = RandAugment("rand-m10-n2-inc1")
    found = torch.cat([strongest(pictures(), Y, batch_rng(0, 0, step, 12))[0] for step in range(20)])
    black = (found == 0).flatten(1).all(1)
    assert 0 < int(black.sum()) < len(found) / 2


def test_mixup_blends_as_its_labels_say() -> None:
    x, y = toy_pictures(), torch.arange(12) % 4
    for settings in (MixUp(classes=4, cutmix=0), MixUp(classes=4, mixup=0)):
        mixed, shares = settings(x, y, rng())
        torch.testing.assert_close(shares.sum(1), torch.ones(12))
        lam = float(shares[0, 0]) if y[0] != y[11] else 1.0
        if settings.cutmix == 0:
            torch.testing.assert_close(mixed, lam * x + (1 - lam) * x.flip(0), atol=1e-5, rtol=0)
        else:
            kept = (mixed == x).all(1).float().mean((1, 2))
            torch.testing.assert_close(kept, torch.full((12,), lam), atol=1e-3, rtol=0)
    unmixed, shares = MixUp(classes=4, share=0)(x, y, rng())
    assert torch.equal(unmixed, x) and torch.equal(shares.argmax(1), y)
    first, second = (MixUp(classes=4)(x[:6], y[:6], replace(rng(12, Shard(r, 2))))[0] for r in range(2))
    assert torch.equal(first, second)  # one draw for every process


@pytest.mark.parametrize(
    "make",
    [
        lambda: Crop(0),
        lambda: Crop(10**8),
        lambda: ResizedCrop(size=-5),
        lambda: ResizedCrop(size=10**6),
        lambda: Flip(1.5),
        lambda: ResizedCrop(scale=(0.5, 1.5)),
        lambda: ResizedCrop(scale=(0.5,)),
        lambda: ResizedCrop(ratio=(2.0, 1.0)),
        lambda: Jitter(2.0),
        lambda: Erasing(share=-1),
        lambda: MixUp(classes=1),
        lambda: MixUp(mixup=0, cutmix=0),
        lambda: RandAugment("nonsense"),
        lambda: MixUp()(toy_pictures()[:3], Y[:3], rng(3)),
        lambda: MixUp(classes=2)(toy_pictures(), Y, rng()),
    ],
)
def test_settings_without_sense_are_refused(make) -> None:
    with pytest.raises(UsageError):
        make()
