"""Adaptive attention scaling: the search, the views, the count, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import tiny_vit, toy_pictures
from vitattack.attacks import attack_text
from vitattack.attacks.aas.attack import AAS
from vitattack.attacks.aas.climb import LITERAL, Climb
from vitattack.attacks.aas.controls import masking_verdicts, read_scales, with_bases, with_controls
from vitattack.attacks.aas.report import referee
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.evaluation.evaluate import evaluate
from vitattack.models.attention.attention_map import AttentionMap
from vitattack.models.attention.features import eq3_distance, unit_distance
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.attention.rescaled import Rescaled
from vitattack.models.base import Attackable
from vitattack.models.passes import counting_passes
from vitattack.models.victim import Victim
from vitattack.models.views import BackwardOnly, Double
from vitattack.text import syntax
from vitattack.threats.lp import LpBall

Images = tuple[Tensor, Tensor]
BALL = LpBall("linf", 0.002)
RNG = SampleRng(0, (0,))
SETTINGS: dict[str, Any] = {"threat": "linf:0.002", "batch_size": 6, "threads": 1}


def labelled(n: int, seed: int) -> Images:
    x = toy_pictures(n, seed)
    with torch.no_grad():
        return x, tiny_vit()(x).argmax(1)


def layers_of(victim: Victim) -> AttentionMap:
    return attention_layers(victim, toy_pictures(1))


def prepared(text: str, victim: Victim) -> AAS:
    attack = attack_text.build(text, BALL).prepare(victim, lambda: labelled(32, 17), rng=RNG)
    assert isinstance(attack, AAS)
    return attack


# The distances.


def test_eq3_and_unit_by_hand() -> None:
    a, b = torch.tensor([[[3.0, 4.0], [0.0, 2.0]]]), torch.tensor([[[3.0, 0.0], [0.0, 2.0]]])
    assert float(eq3_distance(a, b)) == pytest.approx(4 / (29**0.5 * 13**0.5))
    # tokens at unit length, over the root of their number: only the first differs, (0.6, 0.8) against (1, 0)
    assert float(unit_distance(a, b)) == pytest.approx(((0.4**2 + 0.8**2) / 2) ** 0.5)
    assert float(unit_distance(10 * a, b)) == pytest.approx(float(unit_distance(a, b)))
    for measure in (eq3_distance, unit_distance):
        leaf = a.clone().requires_grad_()
        assert float(measure(leaf, a).detach()) == 0
        (grad,) = torch.autograd.grad(measure(leaf, a).sum(), leaf)
        assert torch.equal(grad, torch.zeros_like(a))  # not NaN


def test_features_that_change_their_shape_are_refused_in_one_line() -> None:
    """ATS-ViT keeps a random number of tokens, NaViT packs images into one row."""

    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.calls = tiny_vit().model, 0
            self.inner.blocks[0].register_forward_hook(self.drop)  # type: ignore[union-attr, operator]

        def drop(self, module: nn.Module, args: Any, out: Tensor) -> Tensor:
            self.calls += 1
            return out[:, : 8 + self.calls % 5]

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x)
            return out

    victim = Victim(Dropping(), name="dropping", num_classes=10, input_size=32).eval()
    with pytest.raises(UsageError, match="'dropping' .* objective=margin") as said:
        prepared("aas(pgd(steps=2))", victim)
    assert "\n" not in str(said.value)
    assert prepared("aas(pgd(steps=2), objective=margin)", victim).learned() is not None


def test_channels_are_found_in_both_layouts() -> None:
    image = torch.randn(2, 7, 5, 5)
    assert torch.allclose(unit_distance(image, 2 * image), torch.zeros(2), atol=1e-6)
    assert torch.allclose(
        unit_distance(image, image.roll(1, 0)),
        unit_distance(image.permute(0, 2, 3, 1), image.roll(1, 0).permute(0, 2, 3, 1)),
        atol=1e-6,
    )


# The search.


@pytest.mark.parametrize("objective", ["unit", "lpips", "ce", "margin", "gama"])
@pytest.mark.parametrize("per", ["layer", "head"])
def test_climbing_climbs(toy: Victim, objective: Any, per: Any) -> None:
    x, y = labelled(8, 17)
    search = Climb(objective, restarts=2, batch=8, steps=8, per=per)
    for candidate in search(toy, layers_of(toy), x, y, rng=RNG):
        assert candidate.distances[-1] > candidate.distances[0]
        assert candidate.scales.shape == ((2,) if per == "layer" else (2, 2))
        assert bool((candidate.scales >= 1e-3).all()) and bool((candidate.scales <= 1).all())


def test_the_gradient_of_the_scales_is_the_slope_of_the_distance(toy: Victim) -> None:
    """Against central differences, through the view and the features."""
    layers, toy = layers_of(toy), toy.double()
    x, y = labelled(4, 17)
    x = x.double()
    search = Climb(tap="attention")
    names = [layer.name for layer in layers.layers]
    base, offset = torch.ones(2, dtype=torch.float64), torch.tensor([-0.4, -0.7], dtype=torch.float64)
    here, bounds = search._outputs(toy, layers, names, x, base), (1e-3 * base, base)
    grad, _ = search._gradient(toy, layers, names, x, y, base, offset, here, bounds)

    def distance(at: Tensor) -> float:
        return search._gradient(toy, layers, names, x, y, base, at, here, bounds)[1]

    for i in range(2):
        step = torch.zeros(2, dtype=torch.float64).index_fill(0, torch.tensor(i), 1e-5)
        assert float(grad[i]) == pytest.approx((distance(offset + step) - distance(offset - step)) / 2e-5, rel=1e-5)


def test_the_literal_search_is_a_random_draw(toy: Victim) -> None:
    """Ten raw steps of Eq. 3 do not move the scales noticeably from where the noise put them."""
    x, y = labelled(32, 17)
    (with_steps,) = LITERAL(toy, layers_of(toy), x, y, rng=RNG)
    (without,) = Climb(**{**LITERAL.__dict__, "steps": 0})(toy, layers_of(toy), x, y, rng=RNG)
    assert bool((with_steps.scales >= 1e-7).all()) and bool((with_steps.scales <= 1).all())
    assert float((with_steps.scales - without.scales).abs().max()) < 0.2  # the noise has a deviation of 1


def test_scales_outside_the_chosen_blocks_are_one(toy: Victim) -> None:
    x, y = labelled(4, 17)
    for search in (Climb(restarts=1, batch=4, steps=2, blocks=(1,)), Climb(restarts=1, batch=4, steps=0, blocks=(1,))):
        (candidate,) = search(toy, layers_of(toy), x, y, rng=RNG)
        assert float(candidate.scales[0]) == 1 > float(candidate.scales[1])
    with pytest.raises(UsageError, match="block 2 of a model with 2 attention layers: use 0 to 1"):
        Climb(blocks=(2,))(toy, layers_of(toy), x, y, rng=RNG)


@pytest.mark.parametrize(
    "options",
    [
        "space=linear, spread=1, optimiser=raw, step=1, reference=previous, redraw=True, batches=3",
        "update=inner",
        "through_clamp=True",
        "total_derivative=True, reference=previous, redraw=True",
        "reduction=sum, optimiser=sign",
        "tap=cls",
        "tap=attention, per=head",
        "init_scale=2, upper=10",
        "preset=full, batches=2, batch=8, restarts=2",
        "objective=lpips, blocks=(0,)",
        "mode=backward_only",
        "include_logits=True",
        "include_logits=True, per=head, objective=ce",
        "report=False",
    ],
)
def test_every_reading_of_the_paper_runs(toy: Victim, toy_images: Images, options: str) -> None:
    attack = prepared(f"aas(pgd(steps=2), steps=2, calibration=8, {options})", toy)
    x, y = toy_images
    crafted = attack(toy, x, y, rng=SampleRng(0, tuple(range(12))))
    assert BALL.allows(x, crafted.x_adv).all()


def test_the_default_search_costs_at_most_a_twentieth_of_pgd_100_on_1000_images(toy: Victim) -> None:
    with counting_passes(toy) as passes:
        attack_text.build("aas+pgd", BALL).prepare(toy, lambda: labelled(128, 17), rng=RNG)
    assert 0 < passes.forwards + passes.backwards <= 0.05 * 1000 * 201


def test_what_was_learned_comes_back_from_json(toy: Victim, toy_images: Images) -> None:
    attack = prepared("aas(pgd(steps=3), steps=3, per=head)", toy)
    again = attack_text.build("aas(pgd(steps=3), steps=3, per=head)", BALL).recall(  # type: ignore[attr-defined]
        toy, json.loads(json.dumps(attack.learned()))
    )
    assert again == attack
    rng = SampleRng(0, tuple(range(12)))
    assert torch.equal(again(toy, *toy_images, rng=rng).x_adv, attack(toy, *toy_images, rng=rng).x_adv)


# The views.


def gradient(view: nn.Module, x: Tensor) -> Tensor:
    leaf = x.detach().clone().requires_grad_()
    (grad,) = torch.autograd.grad(view(leaf)[:, 0].sum(), leaf)
    return grad


def test_backward_only_at_one_is_the_true_gradient_and_elsewhere_is_not(toy: Victim) -> None:
    layers, ones = layers_of(toy), torch.ones(2, dtype=torch.float64)
    toy, x = toy.double(), toy_pictures(3).double()
    true = gradient(toy, x)
    assert torch.allclose(gradient(BackwardOnly(toy, ones, layers), x), true, atol=1e-12)
    half = BackwardOnly(toy, ones / 10, layers)
    with torch.no_grad():
        assert torch.allclose(half(x), toy(x), atol=1e-12)  # the forward is the plain one
    assert not torch.allclose(gradient(half, x), true, atol=1e-6)


def test_the_scaled_softmax_jacobian_by_autograd() -> None:
    from vitattack.models.views import _ScaledBackward

    z, s, g = (
        torch.randn(3, 5, dtype=torch.float64),
        torch.tensor(0.3, dtype=torch.float64),
        torch.randn(3, 5).double(),
    )
    leaf = z.clone().requires_grad_()
    (ours,) = torch.autograd.grad((_ScaledBackward.apply(leaf, s) * g).sum(), leaf)
    inner = (s * z).requires_grad_()
    (expected,) = torch.autograd.grad((inner.softmax(-1) * g).sum(), inner)
    assert torch.allclose(ours, expected)


def test_double_is_the_same_function(toy: Victim) -> None:
    x = toy_pictures(3)
    view = Double(toy)
    with torch.no_grad(), counting_passes(toy) as passes:
        out = view(x)
    assert out.dtype == torch.float64 and passes.forwards == 3
    assert torch.allclose(out, tiny_vit().double()(x.double()), atol=1e-12)
    assert next(toy.parameters()).dtype == torch.float32
    with torch.no_grad():
        assert torch.equal(view.verdict(x.double(), out), toy(x))


# The count.


def test_a_factor_of_one_is_the_plain_attack(toy: Victim, toy_images: Images) -> None:
    x, y = toy_images
    rng = SampleRng(0, tuple(range(12)))
    plain = attack_text.build("pgd(steps=3)", BALL)(toy, x, y, rng=rng)
    crafted = prepared("scale(1, pgd(steps=3))", toy)(toy, x, y, rng=rng)
    assert torch.equal(crafted.x_adv, plain.x_adv)
    for name in ("base_fooled", "aas_fooled", "scaled_fooled", "scaled_examples_fool_plain"):
        assert torch.equal(crafted.evidence[name], plain.evidence["fooled"]), name


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "text", ["aas(pgd(steps=3), steps=2)", "scale(0.1, fgsm)", "aas_literal(pgd(steps=2), steps=2)"]
)
def test_the_union_is_never_above_the_base(text: str, seed: int) -> None:
    victim = tiny_vit(seed)
    x = toy_pictures(16, seed=seed + 50)
    with torch.no_grad():
        y = victim(x).argmax(1)
    y[:3] = (y[:3] + 1) % 10
    learns = {} if text.startswith("scale(") else {"calibration": labelled(32, 17)}
    evaluation = evaluate(victim, text, data=(x, y), **learns, **SETTINGS)
    found = referee(evaluation.results[0])
    assert found is not None
    assert found.union.correct <= found.base.correct <= found.clean.correct == 13
    assert found.union.correct <= (found.aas or found.base).correct
    assert found.union.correct == evaluation.worst_case.correct


def test_the_referee_counts_what_really_happens(toy_images: Images) -> None:
    """Every figure of the report, counted again from the examples themselves."""
    victim, scales = tiny_vit(), torch.tensor([0.05, 0.05])
    x, y = toy_images
    y = y.clone()
    y[:2] = (y[:2] + 1) % 10  # two clean errors, which the scaled model may get right
    text = "scale(0.05, pgd(steps=3))"
    evaluation = evaluate(victim, text, data=(x, y), **SETTINGS)
    found = referee(evaluation.results[0])
    assert found is not None and found.scaled_protocol is not None and found.clean_scaled is not None
    view, rng = Rescaled(victim, scales), SampleRng(0, tuple(range(12)))
    with torch.no_grad():
        scaled_right = view(x).argmax(1) == y
        right = victim(x).argmax(1) == y

    class OnItsOwn(Attackable):
        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = view(x)
            return out

    examples = attack_text.build("pgd(steps=3)", BALL)(OnItsOwn(), x, y, rng=rng).x_adv
    with torch.no_grad():
        fools_scaled, fools_plain = view(examples).argmax(1) != y, victim(examples).argmax(1) != y
    assert found.clean_scaled.correct == int(scaled_right.sum())
    assert found.scaled_protocol.correct == int((scaled_right & ~fools_scaled).sum())
    assert found.scaled_examples is not None
    assert found.scaled_examples.correct == int((right & ~fools_plain).sum())
    assert found.false_successes == int((right & fools_scaled & ~fools_plain).sum())
    assert found.missed == int((right & ~fools_scaled & fools_plain).sum())


def test_scales_are_stored_once_shown_and_reused(
    tmp_path: Path, toy_images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**SETTINGS, "data": toy_images, "calibration": labelled(32, 17)}
    model = tiny_vit().model
    first = evaluate(model, "aas(pgd(steps=2), steps=2)", out=tmp_path, **settings)
    folder = first.results[0].folder
    assert folder is not None
    stored = json.loads((folder / "learned.json").read_text())
    assert stored["forwards"] > 0 and len(stored["learned"]["found"]["scales"]) == 2
    lines = (folder / "samples.jsonl").read_text().splitlines(keepends=True)
    (folder / "samples.jsonl").write_text("".join(lines[:6]))
    (folder / "result.json").unlink()
    monkeypatch.setattr(Climb, "__call__", lambda *_, **__: pytest.fail("searched again"))
    again = evaluate(model, "aas(pgd(steps=2), steps=2)", out=tmp_path, **settings)
    assert (folder / "samples.jsonl").read_text() == "".join(lines)
    assert [r.line() for r in again.results[0].records] == [line.strip() for line in lines if line[:9] == '{"index":']
    del settings["calibration"]  # given scales learn nothing
    reused = evaluate(model, "aas+pgd(steps=2)", scales=folder / "learned.json", out=tmp_path, **settings)
    assert reused.results[0].job.attack.startswith("given(pgd(steps=2), scales=((")
    assert reused.worst_case.correct == first.worst_case.correct


def test_controls_run_at_equal_compute_and_give_a_verdict(toy_images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    parse = syntax.parse_syntax
    monkeypatch.setattr(syntax, "parse_syntax", lambda text: (parsed.append(text), parse(text))[1])
    settings = {**SETTINGS, "data": toy_images, "calibration": labelled(16, 17)}
    model = tiny_vit().model
    asked = with_bases(["fgsm", "aas(pgd(steps=2), steps=1)", "aas(pgd(steps=2), steps=2, restarts=3)"])
    assert asked[-1].text == "pgd(steps=2)" and len(asked) == 4
    first = evaluate(model, asked, **settings)
    attacks = with_controls(first)
    assert attacks[:4] == asked  # nothing that was asked for is dropped
    extra = [attack.text for attack in attacks[4:]]
    assert {text.partition("(")[0] for text in extra} == {
        "restarts",
        "random_scales",
        "scale_search",
        "fp64",
    }
    evaluation = evaluate(model, attacks, **settings)
    small, large = masking_verdicts(evaluation)
    for verdict, text in ((small, asked[1].text), (large, asked[2].text)):
        assert verdict.startswith(text) and "masking" in verdict and "p = " in verdict
        by_text = {r.job.attack: r for r in evaluation.results}
        name = verdict.partition("against ")[2].partition(" it fools")[0]
        spent = [sum(r.forwards + r.backwards for r in by_text[t].records) for t in (text, name)]
        search = by_text[text].learned or {}
        wanted = spent[0] + search["forwards"] + search["backwards"]
        fewer = by_text[name].count("robust") < by_text[text].count("robust")
        assert spent[1] > 0.85 * wanted or fewer  # a control that breaks more has fewer samples to spend on
    assert len(parsed) == 3  # the texts above, once each
    with pytest.raises(UsageError, match="--controls belongs to a run of aas"):
        with_bases(["pgd(steps=2)"])


def test_inside_other_attacks_there_is_no_report(toy_images: Images) -> None:
    settings = {**SETTINGS, "data": toy_images, "calibration": labelled(32, 17)}
    evaluation = evaluate(tiny_vit().model, "worst(fgsm, aas(pgd(steps=2), steps=1))", **settings)
    assert evaluation.results[0].section("referee") is None


@pytest.mark.parametrize("inner", ["fgsm", "worst(fgsm, gama(steps=4))", "restarts(2, pgd(steps=2))", "pma(steps=4)"])
@pytest.mark.parametrize("options", ["mode=backward_only, per=head", "per=head", "mode=backward_only"])
def test_any_attack_may_be_held_in_any_mode(toy: Victim, toy_images: Images, inner: str, options: str) -> None:
    for ball in (BALL, LpBall("l2", 0.1)):
        attack = attack_text.build(f"aas({inner}, restarts=1, steps=1, calibration=8, {options})", ball)
        ready = attack.prepare(toy, lambda: labelled(8, 17), rng=RNG)
        crafted = ready(toy, *toy_images, rng=SampleRng(0, tuple(range(12))))
        assert ball.allows(toy_images[0], crafted.x_adv).all()


# What is refused.


def test_models_without_attention_and_bad_scales_get_one_line(toy: Victim, toy_images: Images, tmp_path: Path) -> None:
    x, y = toy_images
    cnn = nn.Sequential(nn.Conv2d(3, 4, 8, 8), nn.Flatten(), nn.Linear(64, 10))
    settings: dict[str, Any] = {**SETTINGS, "data": (x, y), "calibration": labelled(4, 17)}
    with pytest.raises(UsageError, match="no attention softmax"):
        evaluate(cnn, "aas+pgd", **settings)
    for text, message in (
        ("given(pgd, scales=((0.5,),))", "1 scales for the 2 attention layers"),
        ("given(pgd, scales=((0.5, -1),))", "must be positive"),
        ("scale(0, pgd)", "not positive numbers"),
        ("aas(pgd, lower=2)", "must be positive and include 1"),
        ("aas(pgd, restarts=0)", "at least one restart"),
        ("aas(pgd, keep=0)", "must be at least 1"),
        ("aas", "aas needs inner"),
    ):
        given = {k: v for k, v in settings.items() if k != "calibration" or text.startswith("aas")}
        with pytest.raises(UsageError, match=message):
            evaluate(tiny_vit(), text, **given)
    none = (x[:0], y[:0])
    with pytest.raises(UsageError, match="give --calibration|no calibration images|no images"):
        evaluate(tiny_vit(), "aas+pgd", **{**settings, "calibration": none})
    with pytest.raises(UsageError, match="learns from other images than the evaluated ones: give --calibration"):
        evaluate(tiny_vit(), "aas+pgd", **{**settings, "calibration": None})
    (tmp_path / "scales.json").write_text('{"a": 1}')
    with pytest.raises(UsageError, match="holds no scales"):
        evaluate(tiny_vit(), "aas+pgd", scales=tmp_path / "scales.json", **settings)
    with pytest.raises(UsageError, match="cannot read scales"):
        evaluate(tiny_vit(), "aas+pgd", scales=tmp_path / "nowhere.json", **settings)


def test_a_factor_on_the_logits_reaches_the_loss_and_no_verdict(toy: Victim, toy_images: Images) -> None:
    attack = prepared("given(pgd(steps=1), scales=((1, 1, 0.5),))", toy)
    view = attack._view(toy, torch.tensor([1.0, 1.0, 0.5]))
    x, _y = toy_images
    with torch.no_grad():
        assert torch.equal(view(x), 0.5 * toy(x)) and torch.equal(view.verdict(x, view(x)), toy(x))  # type: ignore[operator]
    found = prepared("aas(pgd(steps=1), steps=2, objective=ce, include_logits=True)", toy).chosen
    assert found is not None and len(found.scales[0]) == 3


def test_calibration_images_are_checked(toy_images: Images) -> None:
    x, y = toy_images
    settings: dict[str, Any] = {**SETTINGS, "data": (x, y)}
    for calibration, message in (
        ((torch.cat([toy_pictures(2, 17), x[3:4]]), y[:3]), "among the evaluated ones"),
        ((toy_pictures(2, 17)[..., ::2, ::2], y[:2]), "takes 32"),
        ((toy_pictures(2, 17), y[:2] + 70), "is no class"),
    ):
        with pytest.raises(UsageError, match=message):
            evaluate(tiny_vit(), "aas(pgd(steps=2), steps=1)", calibration=calibration, **settings)
    with pytest.raises(UsageError, match="among the evaluated ones"):
        evaluate("tiny-vit", "aas+fgsm", data="cifar10-demo", limit=4, calibration="cifar10-demo[2:8]", threads=1)


def test_scales_that_are_none_or_not_asked_for(toy_images: Images, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('[["a"]]')
    with pytest.raises(UsageError, match="holds no scales"):
        evaluate(tiny_vit(), "aas+pgd", scales=tmp_path / "s.json", data=toy_images, **SETTINGS)
    for text in ('{"learned": {"found": null}}', '{"learned": 3}', f"[{'1' * 400}]", "[" * 100_000, "{}"):
        (tmp_path / "s.json").write_text(text)
        with pytest.raises(UsageError, match="holds no scales|cannot read scales"):
            read_scales(tmp_path / "s.json")
    (tmp_path / "s.json").write_text("[[0.5, 0.5]]")
    with pytest.raises(UsageError, match="scales are for attacks through attention"):
        evaluate(tiny_vit(), "pgd", scales=tmp_path / "s.json", data=toy_images, **SETTINGS)


def test_one_image_is_enough(toy_images: Images) -> None:
    x, y = toy_images
    data = (x[:1], y[:1])
    assert evaluate(tiny_vit(), "aas(pgd(steps=2), steps=2)", data=data, calibration=labelled(1, 17), **SETTINGS).n == 1
