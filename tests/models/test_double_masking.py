"""Double masking: masks that cover every patch, the algorithm against a plain loop over it, and bounds that never cross."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor, nn

import vitattack
from tests.conftest import tiny_vit, toy_pictures
from vitattack.core.errors import UsageError
from vitattack.models.double_masking import GREY, DoubleMasked, covering, double_masked, masks
from vitattack.models.victim import Victim
from vitattack.threats.patch import Patch


class Steady(nn.Module):
    """Brightness of the four quarters by median: one quarter painted over, or masked, changes little."""

    def forward(self, x: Tensor) -> Tensor:
        quarters = nn.functional.adaptive_avg_pool2d(x, 2).flatten(2)
        return 20 * torch.cat([quarters.median(2).values, quarters.mean(2)[:, :1]], 1)


def steady(n: int = 24) -> tuple[Victim, Tensor, Tensor]:
    victim = Victim(Steady(), name="steady", num_classes=4, input_size=8).eval()
    x = torch.rand(n, 3, 1, 1, generator=torch.Generator().manual_seed(0)) + 0.2 * toy_pictures(n, 5)[..., ::4, ::4]
    x = x.clamp(0, 1)
    return victim, x, victim(x).argmax(1)


@pytest.mark.parametrize("length", [8, 9, 32, 33])
@pytest.mark.parametrize("across", [1, 2, 3, 6])
def test_every_patch_lies_inside_a_mask(length: int, across: int) -> None:
    for side in range(1, length + 1):
        size, starts = covering(length, side, across)
        assert len(starts) <= across and starts[0] == 0 and starts[-1] + size == length
        for place in range(length - side + 1):
            assert any(start <= place and place + side <= start + size for start in starts)


def by_hand(victim: Victim, image: Tensor, covers: Tensor) -> int:
    """The class of one image by the algorithm of the paper, mask after mask."""

    def under(*hidden: Tensor) -> int:
        return int(victim(image[None].masked_fill(sum(hidden).bool(), GREY)).argmax())  # type: ignore[union-attr]

    said = [under(mask) for mask in covers]
    votes = Counter(said)
    most = min(label for label, count in votes.items() if count == max(votes.values()))
    for mask, label in zip(covers, said, strict=True):
        if label != most and all(under(mask, other) == label for other in covers):
            return label
    return most


@pytest.mark.parametrize("across", [1, 2, 3])
def test_its_class_is_that_of_the_algorithm_image_by_image(across: int) -> None:
    victim, x = tiny_vit(), toy_pictures(12)
    x[:, :, 8:14, 4:10] = torch.rand(
        12, 3, 6, 6, generator=torch.Generator().manual_seed(1)
    ).round()  # some masks disagree
    defended = double_masked(victim, 6, across)
    assert isinstance(defended.model, DoubleMasked)
    with torch.no_grad():
        logits = defended(x)
        assert logits.argmax(1).tolist() == [by_hand(victim, image, defended.model.covers) for image in x]
        alone = torch.cat([defended(image[None]) for image in x])
    assert torch.allclose(alone, logits, rtol=1e-4, atol=1e-3)
    assert across == 1 or not torch.equal(victim(x).argmax(1), logits.argmax(1))


def test_no_patch_at_any_place_changes_a_certified_image() -> None:
    """Every place, patches of one colour: black, white, and the colours of each class."""
    victim, x, y = steady()
    defended = double_masked(victim, 2, 3)
    assert isinstance(defended.model, DoubleMasked)
    certified = defended.model.certified(x, y)
    assert 3 <= int(certified.sum()) < len(x)
    broken = torch.zeros_like(certified)
    for top in range(7):
        for left in range(7):
            for colour in ([0, 0, 0], [1, 1, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1]):
                x_adv = x.clone()
                x_adv[:, :, top : top + 2, left : left + 2] = torch.tensor(colour).view(3, 1, 1)
                with torch.no_grad():
                    broken |= defended(x_adv).argmax(1) != y
    assert not (broken & certified).any() and broken.any()


@pytest.mark.parametrize("attack", ["patch_pgd(steps=6, place=every(3))", "patch_pgd(steps=6, place=gradient)"])
def test_attacked_is_never_below_certified_on_any_image(attack: str) -> None:
    victim, x, y = steady()
    defended = double_masked(victim, 2, 3)
    assert isinstance(defended.model, DoubleMasked)
    certified = defended.model.certified(x, y)
    records = vitattack.evaluate(defended, attack, threat="patch:2px", data=(x, y))[0].records
    robust = torch.tensor([record.status == "robust" for record in records])
    assert (robust >= certified).all() and 0 < int(certified.sum()) < len(x)


def test_a_transformer_behind_masks_has_gradients_and_withstands_what_it_should() -> None:
    victim, x = tiny_vit(), toy_pictures(6)
    defended = double_masked(victim, 3, 2)
    y = defended(x).argmax(1)
    attack = vitattack.attack("patch_pgd(steps=3)", threat="patch:3px")
    crafted = attack(defended, x, y).x_adv
    assert Patch(3).allows(x, crafted).all() and not torch.equal(crafted, x)
    assert isinstance(defended.model, DoubleMasked)
    certified = defended.model.certified(x, y)
    with torch.no_grad():
        assert (defended(crafted).argmax(1)[certified] == y[certified]).all()


def test_a_mask_larger_than_the_image_is_refused() -> None:
    with pytest.raises(UsageError, match="do not fit images of 8 x 8 px"):
        masks(8, 8, 9, 2)
