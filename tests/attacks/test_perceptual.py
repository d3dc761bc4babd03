"""Sizes of perturbations by hand, and what is said where LPIPS cannot be computed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import vitattack
from vitattack.attacks.perceptual import distances
from vitattack.core.errors import UsageError

X = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_ssim_by_hand() -> None:
    assert torch.allclose(distances.ssim(X, X), torch.ones(3, dtype=torch.float64))
    one, other = (torch.full((2, 3, 16, 16), v, dtype=torch.float64) for v in (0.3, 0.6))
    expected = (2 * 0.3 * 0.6 + 1e-4) / (0.3**2 + 0.6**2 + 1e-4)  # flat images: only the means are left
    assert distances.ssim(one, other).tolist() == pytest.approx([expected, expected])
    # a window that holds the whole image: the formula of the paper, weighted by the window
    small, moved = X[:1, :1, :11, :11], X[1:2, :1, :11, :11]
    at = torch.arange(11, dtype=torch.float64) - 5
    w = torch.outer(*[(-(at**2) / 4.5).exp()] * 2)
    w /= w.sum()
    a, b = small[0, 0], moved[0, 0]
    mu, nu = (w * a).sum(), (w * b).sum()
    var_a, var_b, cov = (w * (a - mu) ** 2).sum(), (w * (b - nu) ** 2).sum(), (w * (a - mu) * (b - nu)).sum()
    by_hand = (2 * mu * nu + 1e-4) * (2 * cov + 9e-4) / ((mu**2 + nu**2 + 1e-4) * (var_a + var_b + 9e-4))
    assert float(distances.ssim(small, moved)) == pytest.approx(float(by_hand))
    assert distances.ssim(X[:, :, :4, :4], X[:, :, :4, :4]).tolist() == pytest.approx(
        [1, 1, 1]
    )  # smaller than a window


def test_more_noise_looks_less_alike() -> None:
    noise = torch.randn(X.shape, generator=torch.Generator().manual_seed(1), dtype=X.dtype)
    scores = [float(distances.ssim(X, X + size * noise).mean()) for size in (0.01, 0.05, 0.2)]
    assert scores == sorted(scores, reverse=True) and scores[-1] < 0.9


def test_measured_candidates_are_the_same_candidates(toy_images: tuple[Tensor, Tensor], toy: torch.nn.Module) -> None:
    x, y = toy_images
    plain = vitattack.attack("pgd(steps=3)", threat="linf:8/255")(toy, x, y)
    sized = vitattack.attack("perceptual(pgd(steps=3), lpips=False)", threat="linf:8/255")(toy, x, y)
    assert torch.equal(plain.x_adv, sized.x_adv)
    delta = (sized.x_adv - x).flatten(1)
    assert torch.allclose(sized.evidence["l2"], delta.square().sum(1).sqrt())
    assert torch.allclose(sized.evidence["linf"], delta.abs().amax(1))
    assert "lpips" not in sized.evidence


@pytest.fixture
def no_backbone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without the file and without a network to fetch it over."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))

    def refuse(*arguments: object, **more: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(torch.hub, "download_url_to_file", refuse)
    distances.lpips_model.cache_clear()
    distances.lpips_missing.cache_clear()
    yield
    distances.lpips_model.cache_clear()
    distances.lpips_missing.cache_clear()


@pytest.mark.usefixtures("no_backbone")
def test_without_weights_the_rest_is_measured_and_one_line_says_how_to_get_them(
    toy: torch.nn.Module, toy_images: tuple[Tensor, Tensor]
) -> None:
    found = vitattack.evaluate(toy, "pgd(steps=3)", threat="linf:16/255", data=toy_images, perceptual=True, threads=1)
    run = found.json()["attacks"][0]
    assert run["perceptual"]["n"] == run["fooled"] > 0
    assert run["perceptual"]["lpips"] is None and 0 < run["perceptual"]["ssim"] < 1
    assert run["perceptual"]["linf"] == pytest.approx(16 / 255, rel=0.01)
    (line,) = [doubt for doubt in found.doubts if "LPIPS" in doubt]
    assert "alexnet-owt-7be5be79.pth" in line and "\n" not in line
    with pytest.raises(UsageError, match="LPIPS needs AlexNet weights"):
        vitattack.attack("perceptual(pgd)")


def test_lpips_with_its_trunk_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trunk's weights do not ship with us: a random one shows that images go in right and come out per sample."""
    import lpips

    model = lpips.LPIPS(net="alex", pnet_rand=True, verbose=False).eval()
    monkeypatch.setattr(distances, "lpips_model", lambda: model)
    x = X.float()
    found = distances.measures(x, (x + 0.1).clamp(0, 1), lpips=True)["lpips"]
    with torch.no_grad():
        assert torch.allclose(found, model(2 * x - 1, 2 * (x + 0.1).clamp(0, 1) - 1).flatten())
    assert found.shape == (3,) and bool((found > 0).all())
    assert distances.measures(x, x, lpips=True)["lpips"].tolist() == [0, 0, 0]
    assert distances.measures(x[:, :1], x[:, :1], lpips=True)["lpips"].shape == (3,)  # grey images too


@pytest.mark.parametrize("inner", ["eot(pgd(steps=2), n=2)", "fp64(pgd(steps=2))", "scale(0.5, pgd(steps=2))"])
def test_attacks_through_views_are_measured_too(
    inner: str, toy: torch.nn.Module, toy_images: tuple[Tensor, Tensor]
) -> None:
    plain = vitattack.attack(inner, threat="linf:8/255")(toy, *toy_images)
    sized = vitattack.attack(f"perceptual({inner}, lpips=False)", threat="linf:8/255")(toy, *toy_images)
    assert torch.equal(plain.x_adv, sized.x_adv) and "ssim" in sized.evidence
    with pytest.raises(UsageError, match="do not hold each other"):
        vitattack.attack(f"eot({inner})")


@pytest.mark.parametrize("text", ["worst(perceptual(pgd, lpips=False), gama)", "aas+perceptual(pgd, lpips=False)"])
def test_only_what_comes_out_at_the_end_is_measured(text: str) -> None:
    """A later stage would leave the sizes of another candidate behind, or none."""
    with pytest.raises(UsageError, match="write it outermost"):
        vitattack.attack(text)


def test_images_too_small_for_lpips_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import lpips

    model = lpips.LPIPS(net="alex", pnet_rand=True, verbose=False).eval()
    monkeypatch.setattr(distances, "lpips_model", lambda: model)
    x = X[:, :, :31, :31].float()
    assert distances.measures(x, x, lpips=True)["lpips"].tolist() == [0, 0, 0]
    with pytest.raises(UsageError, match="at least 31 px, not 1: .*lpips=False"):
        distances.measures(x[..., :1, :1], x[..., :1, :1], lpips=True)
    assert distances.measures(x[..., :1, :1], x[..., :1, :1], lpips=False)["ssim"].tolist() == pytest.approx([1, 1, 1])


@pytest.mark.usefixtures("no_backbone")
def test_offline_nothing_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(torch.hub, "download_url_to_file", lambda *given, **more: asked.append(given))
    monkeypatch.setenv("VITATTACK_OFFLINE", "1")
    assert "VITATTACK_OFFLINE" in str(distances.lpips_missing())
    assert asked == []


@pytest.mark.usefixtures("no_backbone")
def test_what_cannot_be_fetched_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(*arguments: object, **more: object) -> None:
        asked.append(arguments)
        raise OSError("no network")

    monkeypatch.setattr(torch.hub, "download_url_to_file", refuse)
    for _ in range(3):
        vitattack.attack("perceptual(pgd, lpips=False)")
    assert len(asked) <= 1


def test_oblong_images_are_measured_as_their_transposes_are() -> None:
    x = torch.rand(2, 3, 16, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    other = (x + 0.1 * torch.rand_like(x)).clamp(0, 1)
    upright = distances.measures(x, other, lpips=False)
    lying = distances.measures(x.transpose(2, 3), other.transpose(2, 3), lpips=False)
    assert all(torch.allclose(upright[name], lying[name], atol=1e-12) for name in upright)
    left = torch.stack(
        [distances.ssim(x[..., at : at + 11], other[..., at : at + 11]) for at in range(30)]
    )  # all windows
    assert torch.allclose(upright["ssim"], left.mean(0), atol=1e-12)
