"""`diagnose` on models whose attention was planted, and against figures computed by hand."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from vitattack.cli.main import cli

import vitattack
from tests.conftest import tiny_vit, toy_pictures
from tests.models.attention.test_tap import swin
from vitattack.core.errors import UsageError, VitattackError
from vitattack.diagnostics.diagnose import Diagnosis, diagnose
from vitattack.diagnostics.input_gradients import GradientPanel
from vitattack.diagnostics.row_statistics import KEPT_ROWS, RowStatistics, bin_edges
from vitattack.models.architectures.small import SMALL
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.attention.rescaled import Rescaled
from vitattack.models.victim import Victim
from vitattack.report import diagnosis as report

X, Y = toy_pictures(8), torch.arange(8) % 10


def queries(victim: Victim, factor: float, only: int | None = None) -> Victim:
    """A copy whose query weights are multiplied, in one block or in all."""
    changed = copy.deepcopy(victim)
    with torch.no_grad():
        for number, block in enumerate(changed.model.blocks):
            if only in (None, number):
                width = block.attn.qkv.weight.shape[0] // 3
                block.attn.qkv.weight[:width] *= factor
                block.attn.qkv.bias[:width] *= factor
    return changed


def four_blocks() -> Victim:
    """Random weights whose scores spread like those of trained ones: gaps of about 0.2."""
    torch.manual_seed(0)
    model = SMALL["tiny_vit_32"](embed_dim=32, depth=4, num_heads=2)
    with torch.no_grad():
        for block in model.blocks:
            nn.init.normal_(block.attn.qkv.weight, std=0.25)
    return Victim(model, name="four", num_classes=10, input_size=32).eval()


def verdicts(diagnosis: Diagnosis) -> list[str]:
    return [block.verdict for block in diagnosis.blocks]


def run(module: nn.Module, **settings: Any) -> Diagnosis:
    return diagnose(module, (X, Y), threads=1, **settings)


def test_a_normal_model_is_ok() -> None:
    found = run(four_blocks())
    assert verdicts(found) == ["ok"] * 4 and found.verdict == "ok"
    margin = found.gradient["margin"]["fp32"]
    assert margin["sign_agreement"] > 0.999 and margin["cosine"] > 0.9999 and margin["lost"] == 0
    assert all(block.zero_dscores == 0 for block in found.blocks)


@pytest.mark.parametrize("planted", range(4))
def test_exactly_the_planted_layer_is_flagged(planted: int) -> None:
    found = run(queries(four_blocks(), 1e4, planted))
    assert verdicts(found) == ["underflow" if n == planted else "ok" for n in range(4)]
    assert [block.zero_dscores > 0.5 for block in found.blocks] == [n == planted for n in range(4)]
    # The residual path carries the gradient of the pixels: looking for zeros there would miss it.
    assert found.gradient["margin"]["fp32"]["zero"] == 0
    assert found.verdict == "underflow"


def test_attention_times_a_thousand_underflows_and_the_inverse_scale_clears_it() -> None:
    normal, sharp = four_blocks(), queries(four_blocks(), 1e3)
    found = run(sharp)
    assert verdicts(found) == ["underflow"] * 4 and found.verdict == "underflow"
    cleared, before = run(Rescaled(sharp, torch.full((4,), 1e-3))), run(normal)
    assert verdicts(cleared) == ["ok"] * 4 and cleared.verdict == "ok"
    for one, two in zip(cleared.blocks, before.blocks, strict=True):
        assert one.summary["gap_median"] == pytest.approx(two.summary["gap_median"], rel=1e-3)


def test_saturation_is_told_from_underflow() -> None:
    found = run(queries(four_blocks(), 30))
    assert set(verdicts(found)) == {"saturated"} and found.verdict == "saturated"
    assert all(block.summary["saturated"] > 0.01 and block.summary["underflow"] <= 0.001 for block in found.blocks)
    assert not found.spoilt


def test_figures_are_those_of_a_hand_computation() -> None:
    """A two-block model, both kernels: fp64 products of the q and k that its own fp32 forward makes."""
    victim = queries(tiny_vit(), 200.0)
    captured: list[Tensor] = []
    for block in victim.model.blocks:
        block.attn.qkv.register_forward_hook(lambda _, __, out: captured.append(out.detach()))
    with torch.no_grad():
        victim(X)
    found = run(victim, batch_size=8)
    for block, qkv in zip(found.blocks, captured[:2], strict=True):
        q, k, _ = (part.double().numpy() for part in qkv.view(8, 64, 3, 2, 16).permute(2, 0, 3, 1, 4))
        scores = np.einsum("bhnd,bhmd->bhnm", q, k) / 4.0
        ordered = np.sort(scores, -1)
        gap = ordered[..., -1] - ordered[..., -2]
        weights = np.exp(scores - ordered[..., -1:])
        weights /= weights.sum(-1, keepdims=True)
        expected = {
            "gap_median": np.median(gap),
            "gap_p99": np.quantile(gap, 0.99),
            "gap_max": gap.max(),
            "saturated": (gap > 16.6).mean(),
            "underflow": (gap > 87.3).mean(),
            "entropy": -(weights * np.log(np.maximum(weights, 1e-300))).sum(-1).mean(),
            "jacobian_trace": (1 - (weights**2).sum(-1)).mean(),
        }
        for name, value in expected.items():
            assert block.summary[name] == pytest.approx(value, abs=1e-9, rel=1e-9), name
        for head in range(2):
            assert block.per_head[head]["gap_median"] == pytest.approx(np.median(gap[:, head]), abs=1e-9)
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            z = torch.from_numpy(scores).to(dtype)
            p = z.softmax(-1)
            counted = block.summary["dtypes"][str(dtype).removeprefix("torch.")]
            assert counted["zero_weights"] == pytest.approx(float((p == 0).double().mean()), abs=1e-5)
            assert counted["p_max_one"] == pytest.approx(float((p.amax(-1) == 1).double().mean()), abs=1e-5)
            subnormal = (p > 0) & (p < torch.finfo(dtype).tiny)
            assert counted["subnormal_weights"] == pytest.approx(float(subnormal.double().mean()), abs=1e-5)
            dead = (p == 0).sum(-1) == p.shape[-1] - 1
            assert counted["dead_rows"] == pytest.approx(float(dead.double().mean()), abs=1e-5)
        assert sum(block.histogram) == gap.size == block.summary["rows"]


def test_zero_dscores_are_those_of_autograd() -> None:
    """One head, written out: the gradient of its scores, entry by entry."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.q, self.k, self.v, self.head = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 10)

        def forward(self, x: Tensor) -> Tensor:
            tokens = nn.functional.avg_pool2d(x, 8).flatten(2).transpose(1, 2)
            self.z = 3000 * self.q(tokens) @ self.k(tokens).transpose(1, 2)
            return self.head((self.z.softmax(-1) @ self.v(tokens)).mean(1))

    model = Model()
    logits = model(X)
    wrong = logits.scatter(1, Y[:, None], -math.inf).amax(1) - logits.gather(1, Y[:, None]).squeeze(1)
    (grad,) = torch.autograd.grad(wrong.sum(), model.z)
    share = float((grad == 0).double().mean())
    assert 0.1 < share < 0.999
    found = run(model)
    assert found.blocks[0].zero_dscores == pytest.approx(share, abs=1e-9)
    dead = float((grad == 0).all(-1).double().mean())
    assert found.gradient["dead_dscores"] == pytest.approx(dead, abs=1e-9)


def test_queries_nobody_reads_are_no_evidence() -> None:
    """In the last block of a model with a class token all other rows get no gradient, in any precision."""
    torch.manual_seed(0)
    model = VisionTransformer(32, 8, embed_dim=16, depth=2, num_heads=2, num_classes=10)
    nn.init.normal_(model.blocks[1].attn.qkv.weight, std=0.3)
    found = run(model)
    assert found.blocks[1].zero_dscores < 0.01 and found.gradient["dead_dscores"] == 0 and found.verdict == "ok"


def test_a_broken_output_softmax_shows_in_the_cross_entropy_alone() -> None:
    loud = four_blocks()
    with torch.no_grad():
        loud.model.head.weight *= 1e5
        y = loud(X).argmax(1)
    found = diagnose(loud, (X, y), threads=1)
    assert found.verdict == "ok"
    assert found.gradient["cross_entropy"]["fp32"]["zero_images"] > 0.4
    assert found.gradient["margin"]["fp32"]["zero_images"] == 0


def test_masked_entries_take_no_part() -> None:
    victim = swin(fused=False)
    found = run(victim)
    masks = [block.attn_mask for stage in victim.model.layers for block in stage.blocks]
    for block, mask in zip(found.blocks, masks, strict=True):
        assert block.verdict == "ok" and block.summary["gap_max"] < 16
        assert block.summary["zero_weights"] == 0 and block.zero_dscores == 0  # 0.4 of them, were -100 a score
        if mask is not None:
            assert block.summary["dtypes"]["float32"]["subnormal_weights"] == 0


def test_rows_without_a_choice_are_left_out() -> None:
    z = torch.tensor([[[5.0, 1.0, 0.0], [2.0, 7.0, 7.0], [1.0, 2.0, 3.0]]], dtype=torch.float64)
    masked = torch.tensor([[[False, False, True], [False, True, True], [True, True, True]]])
    statistics = RowStatistics(1)
    statistics.add(z, masked)
    summary = statistics.summary()
    assert (summary["rows"], summary["gap_max"], summary["gap_median"]) == (1, 4.0, 4.0)
    assert summary["dtypes"]["float32"]["zero_weights"] == 0


def test_the_limits_of_each_dtype() -> None:
    """Rows of two entries around the gaps where rounding to 1, subnormals and zeros begin."""
    gaps = [8.3, 8.4, 16.6, 16.7, 87.2, 87.5, 103.9, 104.1, 70000.0]
    statistics = RowStatistics(1)
    statistics.add(torch.tensor([[[gap, 0.0] for gap in gaps]], dtype=torch.float64), None)
    rows = len(gaps)
    single, half = (statistics.summary()["dtypes"][name] for name in ("float32", "float16"))
    assert single["p_max_one"] == pytest.approx(6 / rows)  # from 24 ln 2 = 16.636 on
    assert single["subnormal_weights"] == pytest.approx(2 / (2 * rows))  # 87.5 and 103.9
    assert single["zero_weights"] == pytest.approx(2 / (2 * rows)) and single["dead_rows"] == pytest.approx(2 / rows)
    assert half["overflow_rows"] == pytest.approx(1 / rows)
    assert half["p_max_one"] == pytest.approx(7 / rows)  # from 12 ln 2 = 8.318 on, without the overflow
    assert (statistics.summary()["saturated"], statistics.summary()["underflow"]) == pytest.approx((6 / rows, 4 / rows))


def test_memory_is_bounded_and_sampled_quantiles_are_close() -> None:
    generator = torch.Generator().manual_seed(1)
    statistics, gaps = RowStatistics(2), []
    for _ in range(12):
        gap = torch.rand(2, 20_000, generator=generator, dtype=torch.float64) * 10
        gaps.append(gap)
        statistics.add(torch.stack([gap, torch.zeros_like(gap)], -1), None)
    whole = torch.cat(gaps, 1)
    assert statistics.sampled and statistics._gaps.numel() == KEPT_ROWS
    assert statistics.summary()["rows"] == whole.numel() == int(statistics.histogram.sum())
    assert statistics.summary()["gap_max"] == float(whole.max())
    for q in (0.5, 0.99):
        assert statistics.quantile(q) == pytest.approx(float(np.quantile(whole.numpy(), q)), rel=0.02)
    assert torch.all(bin_edges()[1:] > bin_edges()[:-1])


def test_results_do_not_depend_on_the_batch_size() -> None:
    one, two = run(tiny_vit(), batch_size=3), run(tiny_vit(), batch_size=8)
    for a, b in zip(one.blocks, two.blocks, strict=True):
        assert a.summary["gap_median"] == pytest.approx(b.summary["gap_median"], rel=1e-5)
        assert a.summary["rows"] == b.summary["rows"]
    assert one.gradient["n"] == two.gradient["n"] == 8


def test_the_model_is_left_as_it_was() -> None:
    victim = tiny_vit().train()
    before = {name: tensor.clone() for name, tensor in victim.state_dict().items()}
    run(victim, gradient_images=2)
    assert victim.training and all(p.requires_grad and p.grad is None for p in victim.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in victim.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in victim.modules())


def test_learned_temperatures_are_reported() -> None:
    import timm

    torch.manual_seed(0)
    model = timm.create_model("xcit_nano_12_p16_224", img_size=32, num_classes=10, depth=2)
    with torch.no_grad():
        model.blocks[1].attn.temperature.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]).view(4, 1, 1))
    found = run(model, gradient_images=2)
    assert found.blocks[0].layer.temperature == (1.0, 1.0, 1.0, 1.0)
    assert found.blocks[1].layer.temperature == (1.0, 2.0, 3.0, 4.0)
    assert found.blocks[2].layer.temperature is None
    assert "learned temperatures: 1 to 4" in report.notes(found)


def test_json_keeps_its_shape() -> None:
    content = json.loads(json.dumps(run(tiny_vit()).json()))
    assert {"schema", "model", "data", "n", "layers", "gradient", "verdict"} <= set(content)
    assert content["schema"] == 1 and content["n"] == 8
    wanted = "layer name heads gap_median gap_p99 gap_max saturated underflow zero_weights zero_dscores verdict"
    assert all(set(wanted.split()) <= set(layer) for layer in content["layers"])
    assert [layer["layer"] for layer in content["layers"]] == [0, 1]


def test_wrong_input_is_one_line() -> None:
    def broken(value: float) -> Victim:
        victim = tiny_vit()
        with torch.no_grad():
            victim.model.blocks[1].attn.qkv.weight.fill_(value)
        return victim

    convolutions = nn.Sequential(nn.Conv2d(3, 4, 8, 8), nn.Flatten(), nn.Linear(64, 10))
    cases: list[tuple[nn.Module, tuple[Tensor, Tensor], type[Exception], str]] = [
        (convolutions, (X, Y), UsageError, "no attention softmax"),
        (tiny_vit().half(), (X, Y), UsageError, "float16 weights.*call .float"),
        (tiny_vit().bfloat16(), (X, Y), UsageError, "bfloat16 weights"),
        (tiny_vit(), (X[:0], Y[:0]), UsageError, "no images"),
        (broken(math.nan), (X, Y), VitattackError, "blocks.1.attn' of 'toy' has NaN scores"),
        (tiny_vit(), (X * 255, Y), UsageError, "divide by 255"),
    ]
    for module, data, kind, words in cases:
        with pytest.raises(kind, match=words) as caught:
            diagnose(module, data, threads=1)
        assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="use at least 1"):
        run(tiny_vit(), gradient_images=0)


def test_images_of_another_size_are_refused_before_any_pass() -> None:
    larger = torch.nn.functional.interpolate(X, size=48)
    with pytest.raises(UsageError, match="images are 48 x 48 px, .* takes 32: .* --transform resize32x32"):
        diagnose(tiny_vit(), (larger, Y))


def test_image_files_are_transformed(tmp_path: Path) -> None:
    for number, picture in enumerate(X):
        (tmp_path / str(number)).mkdir()
        image = Image.fromarray((picture * 255).round().byte().movedim(0, -1).numpy()).resize((48, 48))
        image.save(tmp_path / str(number) / "a.png")
    found = diagnose(tiny_vit(), f"folder:{tmp_path}", transform="resize32x32", threads=1)
    assert found.n == 8 and found.data.endswith("@resize32x32")


def test_a_model_that_insists_on_a_dtype() -> None:
    """float32 asked of the softmax alone is no obstacle to the fp64 reference; cast activations are one line."""

    class Model(nn.Module):
        def __init__(self, cast: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.q, self.k, self.v, self.head = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 10)
            self.cast = cast

        def forward(self, x: Tensor) -> Tensor:
            tokens = nn.functional.avg_pool2d(x, 8).flatten(2).transpose(1, 2)
            tokens = tokens.float() if self.cast else tokens
            z = self.q(tokens) @ self.k(tokens).transpose(1, 2)
            p = torch.softmax(z, -1, dtype=torch.float32)
            self.weights = p.to(z.dtype)
            return self.head((self.weights @ self.v(tokens)).mean(1))

    model = Model(cast=False)
    panel = GradientPanel(model, attention_layers(model, X))
    panel.add(X, Y)
    exact = panel._exact.weights
    assert exact.dtype == torch.float64 and not torch.equal(exact, exact.float().double())
    found = run(Model(cast=True))
    assert len(found.blocks) == 1 and found.verdict == "ok"
    gradient = found.gradient
    assert gradient["margin"]["fp32"] is None
    assert gradient["margin"]["bf16"]["sign_agreement"] > 0.9
    assert "Double" in gradient["missing"]["fp64"] and "\n" not in gradient["missing"]["fp64"]
    said = "\n".join(report.notes(found))
    assert "in bf16 against fp32" in said and "in fp32 against" not in said and "cannot run in fp64" in said


def test_a_model_that_cannot_run_in_bfloat16_loses_that_column() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = four_blocks().model

        def forward(self, x: Tensor) -> Tensor:
            x = nn.functional.conv2d(x, torch.eye(3, dtype=x.dtype)[:, :, None, None])
            if x.dtype == torch.bfloat16:
                raise RuntimeError("no kernel for bfloat16")
            out: Tensor = self.inner(x)
            return out

    found, whole = run(Model()), run(four_blocks())
    assert found.gradient["margin"]["bf16"] is None and found.gradient["missing"] == {"bf16": "no kernel for bfloat16"}
    assert found.gradient["margin"]["fp32"] == whole.gradient["margin"]["fp32"]
    assert "missing" not in whole.gradient
    assert not any("in bf16 against" in line for line in report.notes(found))


def test_one_image_is_enough() -> None:
    found = diagnose(tiny_vit(), (X[:1], Y[:1]), threads=1)
    assert found.n == 1 and found.verdict == "ok"


def test_python_face_is_lazy_and_public() -> None:
    assert vitattack.diagnose is diagnose and vitattack.Diagnosis is Diagnosis


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Arguments that name a model with one planted layer and eight images."""
    folder = tmp_path_factory.mktemp("diagnose")
    torch.save(queries(four_blocks(), 1e4, 2).model.state_dict(), folder / "planted.pt")
    np.savez(folder / "images.npz", image=X.numpy(), label=Y.numpy())
    kwargs = '{"embed_dim": 32, "depth": 4, "num_heads": 2}'
    model = [str(folder / "planted.pt"), "--arch", "small:tiny_vit_32", "--arch-kwargs", kwargs, "--normalize", "none"]
    return ["diagnose-softmax", *model, "--data", f"npz:{folder / 'images.npz'}", "--threads", "1", "--quiet"]


def test_command_line_forms(checkpoint: list[str], tmp_path: Path) -> None:
    figure = tmp_path / "gaps.svg"
    as_json = CliRunner().invoke(cli, [*checkpoint, "--json", "--plot", str(figure)])
    assert as_json.exit_code == 0, as_json.output
    content = json.loads(as_json.stdout)
    assert [layer["verdict"] for layer in content["layers"]] == ["ok", "ok", "underflow", "ok"]
    assert "blocks.2: underflow" in figure.read_text() or figure.stat().st_size > 5000
    table = CliRunner().invoke(cli, checkpoint)
    assert table.exit_code == 0 and "blocks.2" in table.stdout and "verdict: underflow" in table.stdout
    assert all(len(line) <= 80 for line in table.stdout.splitlines()[:9])
    csv = CliRunner().invoke(cli, [*checkpoint, "--format", "csv"]).stdout.splitlines()
    assert len(csv) == 1 + 4 * 3  # a row per layer and one for each of its two heads
    assert float(dict(zip(csv[0].split(","), csv[7].split(","), strict=True))["gap_max"]) > 1000


def test_a_figure_of_unknown_kind_fails_before_any_work(checkpoint: list[str]) -> None:
    result = CliRunner().invoke(cli, [*checkpoint, "--plot", "gaps.gif"])
    assert isinstance(result.exception, UsageError) and "png, .svg or .pdf" in str(result.exception)


@pytest.mark.parametrize("suffix", ["png", "pdf"])
def test_figures_before_and_after(suffix: str, tmp_path: Path) -> None:
    sharp = queries(tiny_vit(), 1e3)
    before, after = run(sharp, gradient_images=1), run(Rescaled(sharp, torch.full((2,), 1e-3)), gradient_images=1)
    report.plot(before, tmp_path / f"gaps.{suffix}", after)
    assert (tmp_path / f"gaps.{suffix}").stat().st_size > 5000


def test_a_name_in_a_figure_is_no_formula(tmp_path: Path) -> None:
    named = replace(run(queries(tiny_vit(), 1.0), gradient_images=1), model=r"$\nosuchcommand{$")
    report.plot(named, tmp_path / "gaps.png", named)
    assert (tmp_path / "gaps.png").stat().st_size > 5000


def test_scales_from_a_file_are_looked_at_beside_the_plain_model(tmp_path: Path) -> None:
    (tmp_path / "scales.json").write_text("[[0.01, 0.01, 0.01, 0.01, 0.01, 0.01]]")
    words = [
        "diagnose-softmax",
        "tiny-vit",
        "--limit",
        "4",
        "--gradient-images",
        "2",
        "--threads",
        "1",
        "--quiet",
        "--json",
    ]
    done = CliRunner().invoke(cli, [*words, "--scales", str(tmp_path / "scales.json")])
    assert done.exit_code == 0, done.output
    content = json.loads(done.stdout)
    for before, after in zip(content["layers"], content["after"]["layers"], strict=True):
        # scaled scores change what later blocks see, the first block sees the same images
        if before["layer"] == 0:
            assert after["gap_median"] == pytest.approx(before["gap_median"] / 100, rel=1e-3)
        assert after["gap_max"] < before["gap_max"] / 10


def test_bars_show_everything_that_is_not_empty() -> None:
    assert report.bars([0] * 64) == " " * 8
    assert report.bars([1, *[0] * 63])[0] == "█"
    shown = report.bars([*[0] * 20, 10_000, *[0] * 7, 1, *[0] * 35])
    assert shown.strip() == "█ ▁"


def test_the_noise_of_a_random_model_is_not_taken_for_underflow() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = tiny_vit().model

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x + 0.1 * torch.randn_like(x))
            return out

    x = toy_pictures(8)
    y = tiny_vit()(x).argmax(1)
    plain, noisy = (diagnose(model, (x, y), threads=1) for model in (tiny_vit().model, Noisy()))
    assert noisy.gradient["margin"]["fp32"]["sign_agreement"] < 0.95, "noise moves the gradient"
    assert noisy.verdict == plain.verdict and noisy.json()["random"] > 0 and "random" not in plain.json()
    assert any("the model is random" in note for note in report.notes(noisy))
    torch.rand(3)
    assert diagnose(Noisy(), (x, y), threads=1).json()["gradient"] == noisy.gradient
