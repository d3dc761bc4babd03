"""AAS-AT on a toy: its schedule, its bounds, and an export equal to the trained model."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.conftest import tiny_vit, toy_pictures
from vitattack.attacks import attack_text
from vitattack.attacks.aas.climb import Climb
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.architectures.small import SMALL
from vitattack.models.attention.baked_scales import scales_of
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.attention.tap import AttentionTap
from vitattack.models.victim import Victim
from vitattack.threats.base import parse_threat
from vitattack.train import recipe_parts as words  # noqa: F401  - makes the words of recipes known
from vitattack.train.data.batch import Batch
from vitattack.train.hooks.aas_at import AasAt, AttentionScales, LearnedScales
from vitattack.train.hooks.base import Hook, RunState


def run_of(victim: Victim, seed: int = 0) -> RunState:
    with torch.no_grad():
        labels = victim(toy_pictures(8)).argmax(1)

    def batches(count: int) -> list[Batch]:
        return [Batch(toy_pictures(8), labels)] * count

    optimiser = torch.optim.SGD(victim.parameters(), lr=0.1)
    return RunState(victim, victim, optimiser, 8 / 255, seed, epochs=20, steps=1, batches=batches)


def trained(hook: AttentionScales, epochs: int, seed: int = 0, queries: float = 1.0) -> tuple[RunState, list[Tensor]]:
    """The scales of every epoch; nothing is learned in between. `queries` makes attention matter more."""
    victim = tiny_vit()
    for block in victim.model.blocks:
        block.attn.qkv.weight.data[:32] *= queries
    hook.wrap(victim)
    run = run_of(victim, seed)
    hook.start(run)
    seen = []
    for run.epoch in range(epochs):
        hook.before_epoch(run)
        seen.append(scales_of(victim.model).detach().clone())
    return run, seen


def test_events_fire_after_every_period_and_the_scales_stay() -> None:
    run, seen = trained(AasAt(every=3, batches=2, steps=2, drop=1.0), 8)
    assert all(torch.equal(s, torch.ones(2)) for s in seen[:3])  # none at epoch 0
    assert not torch.equal(seen[3], seen[2]) and not torch.equal(seen[6], seen[5])
    assert torch.equal(seen[3], seen[5]) and torch.equal(seen[6], seen[7])
    assert run.numbers["aas_events"] == run.numbers["aas_changed"] == 2
    _, again = trained(AasAt(every=3, batches=2, steps=2, drop=1.0), 8)
    assert all(torch.equal(a, b) for a, b in zip(seen, again, strict=True))
    _, other = trained(AasAt(every=3, batches=2, steps=2, drop=1.0), 8, seed=1)
    assert not torch.equal(other[3], seen[3])
    _, one = trained(AasAt(every=3, batches=2, steps=2, drop=1.0, events=1), 8)
    assert torch.equal(one[7], one[3])


def test_robust_events_keep_to_their_bounds() -> None:
    hook = AasAt(every=1, batches=2, steps=10, floor=0.2, most=1.5, drop=1.0)
    _, seen = trained(hook, 8)
    for before, after in itertools.pairwise(seen):
        assert float((after / before).log().abs().max()) <= 0.4055 + 1e-4  # ln 1.5
        assert float(after.min()) >= 0.2 - 1e-6 and float(after.max()) <= 1.0
    assert float(seen[-1].min()) < 1 / 1.5  # more than one step down


def test_an_event_that_costs_clean_accuracy_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: whatever moves the scales costs half of the accuracy."""
    monkeypatch.setattr(
        AasAt, "_accuracy", staticmethod(lambda victim, layers, scales, seen: 1.0 if bool((scales == 1).all()) else 0.5)
    )
    run, seen = trained(AasAt(every=1, batches=1, steps=2), 6)
    assert run.numbers["aas_events"] == 5 and run.numbers["aas_changed"] == 0
    assert run.numbers["aas_drop"] == 0.5 and run.numbers["aas_moved"] == 0
    assert all(bool((scales == 1).all()) for scales in seen)


def test_clean_accuracy_is_that_of_the_scaled_model() -> None:
    run, _ = trained(AasAt(every=1, batches=1, steps=2, drop=0.0, most=1e6, floor=1e-6), 2, queries=1000)
    hook, victim = AasAt(), run.plain
    layers = attention_layers(victim, victim.grey())
    seen = [Batch(b.x, victim(b.x).argmax(1)) for b in run.batches(2)]
    assert hook._accuracy(victim, layers, torch.ones(len(layers)), seen) == 1
    with AttentionTap(layers, rescale=torch.full((len(layers),), 1e-3), per="layer"):
        wanted = [int((victim(b.x).argmax(1) == b.y).sum()) for b in seen]
    found = hook._accuracy(victim, layers, torch.full((len(layers),), 1e-3), seen)
    assert found == sum(wanted) / sum(len(b.x) for b in seen) < 1


@pytest.mark.parametrize(("drop", "share"), [(0.1, 1), (0.05, 0.5), (0.03, 0.25), (0.0125, 0.125), (0.01, 0)])
def test_an_event_goes_as_far_as_clean_accuracy_allows(
    drop: float, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: a tenth of the accuracy per factor of two."""
    hook, before = AasAt(drop=drop + 1e-6), torch.tensor([1.0, 0.5])
    monkeypatch.setattr(
        hook, "_accuracy", lambda victim, layers, scales, seen: 1 + 0.1 * float((scales / before).log2().mean())
    )
    kept, lost = hook._affordable(None, None, before, before / 2, [])  # type: ignore[arg-type]
    torch.testing.assert_close(kept, before / 2**share)
    assert lost == pytest.approx(0.1 * (share or 0.125))


def test_the_first_event_may_wait() -> None:
    _, seen = trained(AasAt(every=2, first=3, batches=1, steps=2, drop=1.0), 8)
    moved = [epoch for epoch in range(1, 8) if not torch.equal(seen[epoch], seen[epoch - 1])]
    assert moved == [3, 5, 7]


def test_the_search_moves_features_further_than_the_draw_it_starts_from() -> None:
    victim = tiny_vit()
    layers = attention_layers(victim, victim.grey())
    x, y = toy_pictures(8), torch.zeros(8, dtype=torch.long)
    start = torch.tensor([0.5, 0.8])
    rng = SampleRng(0, (0,))
    climb = Climb(restarts=1, batches=1, batch=8, steps=12)
    found = climb.near(victim, layers, x, y, start, 2.0, rng=rng)
    drawn = replace(climb, steps=0).near(victim, layers, x, y, start, 2.0, rng=rng)
    assert found.distances[-1] > found.distances[0]
    assert float((drawn.scales / start).log().abs().max()) <= 0.6932
    assert not torch.equal(found.scales, drawn.scales)


def test_the_literal_preset_is_algorithm_one() -> None:
    hook = AasAt(every=1, preset="literal", batches=4)
    search = hook.search(8)
    assert (search.objective, search.optimiser, search.lower, search.redraw) == ("lpips", "raw", 1e-7, True)
    _, seen = trained(hook, 12)
    every = torch.cat(seen[1:])
    assert float(every.max()) <= 1 and float(every.min()) == pytest.approx(1e-7)  # a third of them land there
    assert AasAt(random=True).search(8).steps == 0


def test_the_scales_are_part_of_what_is_saved_and_attacked() -> None:
    victim = tiny_vit()
    hook = AasAt(every=1, batches=1, steps=2, drop=1.0)
    hook.wrap(victim)
    run = run_of(victim)
    ones = victim(toy_pictures(2)).detach()
    run.epoch = 1
    hook.before_epoch(run)
    x = toy_pictures(2).requires_grad_()
    assert not torch.equal(victim(x).detach(), ones)
    state = {name: value.clone() for name, value in victim.state_dict().items()}
    other, twin = tiny_vit(), AasAt()
    twin.wrap(other)
    other.load_state_dict(state)
    twin.load_state_dict(hook.state_dict())
    assert torch.equal(other(x), victim(x)) and twin.state_dict()["events"] == 1
    numbers = hook.after_epoch(run)
    assert list(numbers) == ["scale_00", "scale_01"]
    assert numbers["scale_01"] == pytest.approx(float(scales_of(victim.model)[1]))


@pytest.mark.parametrize("per", ["layer", "head"])
def test_the_export_is_an_ordinary_checkpoint_with_the_same_logits(per: str) -> None:
    torch.manual_seed(0)
    model = SMALL["tiny_vit_32"](embed_dim=32, depth=3, num_heads=2)
    victim = Victim(model, name="v", num_classes=10, input_size=32, mean=(0.5,), std=(0.2,)).eval()
    names = list(model.state_dict())
    hook = AasAt(every=1, batches=1, steps=3, drop=1.0, per=per)
    hook.wrap(victim)
    run = run_of(victim)
    run.epoch = 1
    hook.before_epoch(run)
    assert float(scales_of(model).min()) < 1
    plain = hook.plain(victim)
    x = toy_pictures(12)
    with torch.no_grad():
        assert float((plain(x) - victim(x)).abs().max()) <= 1e-6
    assert list(plain.model.state_dict()) == names
    assert scales_of(victim.model) is not None  # training goes on
    bare = SMALL["tiny_vit_32"](embed_dim=32, depth=3, num_heads=2)
    bare.load_state_dict(plain.model.state_dict(), strict=True)


def test_learned_scales_learn_and_fold() -> None:
    victim = tiny_vit()
    hook = LearnedScales()
    hook.wrap(victim)
    twin = copy.deepcopy(victim)  # as the running mean does
    victim(toy_pictures(4)).square().sum().backward()
    own = scales_of(victim.model)
    assert own.grad is not None and bool((own.grad != 0).all()) and scales_of(twin.model).grad is None
    with torch.no_grad():
        own += 0.1
    plain = hook.plain(victim)
    with torch.no_grad():
        torch.testing.assert_close(plain(toy_pictures(4)), victim(toy_pictures(4)), atol=1e-4, rtol=1e-5)


def test_a_model_without_attention_is_refused() -> None:
    victim = Victim(SMALL["tiny_cnn_32"](width=4), name="cnn", num_classes=10, input_size=32)
    with pytest.raises(UsageError, match="no attention"):
        AasAt().wrap(victim)


def test_texts_name_the_hooks() -> None:
    ball = parse_threat("linf:8/255")
    hook, text = attack_text.parse_part("aas_at(every=3, floor=0.01, per=head)", Hook, ball)
    assert isinstance(hook, AasAt) and hook.per == "head" and text == "aas_at(per=head, every=3)"
    for wrong in ("aas_at(every=0)", "aas_at(floor=2)", "aas_at(most=1)", "aas_at(preset=other)", "ard(epochs=0)"):
        with pytest.raises(UsageError):
            attack_text.parse_part(wrong, Hook, ball)
