"""The patch threat: what it allows against a search over all squares, its texts, and the ball of patches at given places."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.threats.base import parse_threat
from vitattack.threats.patch import Patch, pasted

GENERATOR = torch.Generator().manual_seed(0)
X = torch.rand(200, 2, 7, 9, generator=GENERATOR)


def by_search(threat: Patch, x: Tensor, x_adv: Tensor) -> Tensor:
    """Whether any admissible square holds all changes, one square at a time."""
    side, found = threat.side(x), torch.zeros(len(x), dtype=torch.bool)
    for top in range(0, 7 - side + 1, threat.grid):
        for left in range(0, 9 - side + 1, threat.grid):
            outside = (x_adv != x).clone()
            outside[..., top : top + side, left : left + side] = False
            found |= ~outside.flatten(1).any(1)
    return found


@pytest.mark.parametrize(
    "text", ["patch:3px", "patch:1px", "patch:7px", "patch:1tokens@3px", "patch:2tokens@2px", "patch:10%"]
)
def test_exactly_the_changes_that_one_square_holds_are_allowed(text: str) -> None:
    threat = parse_threat(text)
    assert isinstance(threat, Patch)
    x_adv = X.clone()
    for image, count in zip(x_adv, [0, 1, 2, 3, 4] * 40, strict=True):
        top, left = (int(torch.randint(size, (), generator=GENERATOR)) for size in (6, 8))
        for _ in range(count):
            down, across = (int(torch.randint(4, (), generator=GENERATOR)) for _ in range(2))
            image[down % 2, min(top + down, 6), min(left + across, 8)] = 0.5
    allowed = threat.allows(X, x_adv)
    assert torch.equal(allowed, by_search(threat, X, x_adv)) and allowed.any()
    assert text == "patch:7px" or not allowed.all()


def test_a_change_outside_the_square_is_refused_however_small() -> None:
    threat, places = Patch(3), torch.tensor([[1, 2]]).expand(len(X), 2)
    x_adv = threat.at(places).random(X, SampleRng(0, tuple(range(len(X)))))
    assert threat.allows(X, x_adv).all() and threat.size(X, x_adv).tolist() == [9.0] * len(X)
    spoiled = x_adv.clone()
    spoiled[:, 0, 5, 8] = torch.nextafter(spoiled[:, 0, 5, 8], torch.tensor(0.25))
    assert not threat.allows(X, spoiled).any()


def test_the_ball_leaves_everything_outside_its_squares_as_it_is() -> None:
    places = torch.stack([torch.arange(200) % 5, torch.arange(200) % 7], 1)
    ball = Patch(3).at(places)
    inside = ball.inside(X)
    assert inside.flatten(1).sum(1).tolist() == [9] * 200
    for image, (top, left) in zip(inside, places.tolist(), strict=True):
        assert image[0, top : top + 3, left : left + 3].all()
    wild = X + torch.randn(X.shape, generator=GENERATOR)
    back = ball.project(X, wild)
    assert torch.equal(back, torch.where(inside, wild.clamp(0, 1), X))
    assert torch.equal(ball.ascend(wild), torch.where(inside, wild.sign(), 0))
    rows = torch.arange(200) % 3 == 0
    assert torch.equal(ball.of_rows(rows).project(X[rows], wild[rows]), back[rows])


@pytest.mark.parametrize("shared", [True, False])
def test_a_pasted_patch_lies_where_it_should_and_gets_its_gradient(shared: bool) -> None:
    patch = torch.rand(1 if shared else 4, 2, 3, 3, generator=GENERATOR, requires_grad=True)
    places = torch.tensor([[0, 0], [4, 6], [2, 3], [4, 0]])
    images = pasted(X[:4], patch, places)
    for number, (top, left) in enumerate(places.tolist()):
        expected = X[number].clone()
        expected[:, top : top + 3, left : left + 3] = patch[0 if shared else number].detach()
        assert torch.equal(images[number], expected)
    weights = torch.rand(images.shape, generator=GENERATOR)
    (grad,) = torch.autograd.grad((images * weights).sum(), patch)
    pieces = [weights[n, :, top : top + 3, left : left + 3] for n, (top, left) in enumerate(places.tolist())]
    assert torch.allclose(grad, torch.stack(pieces).sum(0, keepdim=True) if shared else torch.stack(pieces))


@pytest.mark.parametrize(
    ("text", "canonical", "side"),
    [
        ("patch:16px", "patch:16px", 16),
        ("PATCH: 16 PX", "patch:16px", 16),
        ("patch:2%", "patch:2%", 32),  # PatchCleanser's 2 % of an ImageNet image
        ("patch:1tokens@16px", "patch:1tokens@16px", 16),
        ("patch:1token@16px", "patch:1tokens@16px", 16),
        ("patch:2tokens@16px", "patch:2tokens@16px", 32),
    ],
)
def test_texts_are_read_and_written(text: str, canonical: str, side: int) -> None:
    threat = parse_threat(text)
    assert isinstance(threat, Patch) and str(threat) == canonical
    assert threat.side(torch.empty(1, 3, 224, 224)) == side
    assert len(threat.lines(torch.empty(1, 3, 224, 224))[0]) == (224 - side) // threat.grid + 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("patch", "names no size: write patch:16px, patch:2%"),
        ("patch:16", "'16' is not understood"),
        ("patch:1tokens", "write .*1tokens@16px"),
        ("patch:0px", "0 px are no patch"),
        ("patch:2.5px", "2.5 px are no patch"),
        ("patch:101%", "101 % are no patch"),
        ("patch:1tokens@0px", "are no patch"),
    ],
)
def test_texts_that_name_no_patch_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_threat(text)


def test_a_patch_larger_than_the_image_is_refused() -> None:
    with pytest.raises(UsageError, match="a patch of 8 px does not fit into images of 9 x 7 px"):
        Patch(8).allows(X, X)
