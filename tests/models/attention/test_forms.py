"""Every way of writing attention down: found, scaled by what it says, and without effect at one."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack

from tests.conftest import toy_pictures
from vitattack import evaluate
from vitattack.core.errors import UsageError
from vitattack.data import from_tensors
from vitattack.diagnostics.diagnose import diagnose
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.attention.rescaled import Rescaled
from vitattack.models.attention.tap import AttentionTap, Seen
from vitattack.models.victim import Victim, as_victim, frozen
from vitattack.models.views import BackwardOnly

X = toy_pictures(2)
HEADS, WIDTH = 3, 4
Form = Callable[[Tensor, Tensor, Tensor], Tensor]  # (scores, values, mixing of heads) -> output


def by_head(z: Tensor, v: Tensor, product: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    pairs = zip(z.softmax(-1).flatten(0, 1), v.flatten(0, 1), strict=True)
    return torch.stack([product(p, u) for p, u in pairs]).unflatten(0, z.shape[:2])


def off_by_one(z: Tensor, v: Tensor, shifted: bool) -> Tensor:
    m = z.amax(-1, keepdim=True) if shifted else torch.zeros(())
    e = torch.exp(z - m)
    return e / (torch.exp(-m) + e.sum(-1, keepdim=True)) @ v


def online(z: Tensor, v: Tensor, size: int = 24) -> Tensor:
    """Blocks of keys, as flash attention takes them."""
    highest = torch.full((*z.shape[:-1], 1), -math.inf)
    total, out = torch.zeros_like(highest), torch.zeros(*z.shape[:-1], v.shape[-1])
    for part, values in zip(z.split(size, -1), v.split(size, -2), strict=True):
        higher = torch.maximum(highest, part.amax(-1, keepdim=True))
        p, correction = (part - higher).exp(), (highest - higher).exp()
        total = total * correction + p.sum(-1, keepdim=True)
        out = out * correction + p @ values
        highest = higher
    return out / total


def logsumexp_by_hand(z: Tensor) -> Tensor:
    m = z.amax(-1, keepdim=True)
    return (z - (m + (z - m).exp().sum(-1, keepdim=True).log())).exp()


def quotient(z: Tensor) -> Tensor:
    e = (z - z.max(-1, keepdim=True).values).exp()
    return e / e.sum(-1, keepdim=True)


def in_place(z: Tensor) -> Tensor:
    e = z.sub(z.amax(-1, keepdim=True)).exp_()
    e /= e.sum(-1, keepdim=True)
    return e


def divided_last(z: Tensor, v: Tensor) -> Tensor:
    e = (z - z.amax(-1, keepdim=True)).exp()
    return (e @ v) / e.sum(-1, keepdim=True)


def summed(z: Tensor, v: Tensor) -> Tensor:
    e = z.exp()
    return (e[..., None] * v[:, :, None]).sum(-2) / e.sum(-1, keepdim=True)


def highest(z: Tensor, v: Tensor) -> Tensor:
    """Each query and the values of its eight best keys."""
    best, places = z.topk(8, -1)
    chosen = (
        v[:, :, None].expand(-1, -1, z.shape[2], -1, -1).gather(3, places[..., None].expand(*places.shape, v.shape[-1]))
    )
    return (best.softmax(-1)[..., None] * chosen).sum(-2)


def einsums(z: Tensor, v: Tensor) -> Tensor:
    e = z.exp()
    return torch.einsum("bhij,bhjd->bhid", e, v) / torch.einsum("bhij->bhi", e)[..., None]


def by_ones(z: Tensor, v: Tensor) -> Tensor:
    out = z.exp() @ torch.cat([v, torch.ones_like(v[..., :1])], -1)
    return out[..., :-1] / out[..., -1:]


def reciprocal(z: Tensor) -> Tensor:
    e = (z - z.amax(-1, keepdim=True)).exp()
    return e * (1 / e.sum(-1, keepdim=True).clamp(min=1e-9))


def base_two(z: Tensor) -> Tensor:
    e = torch.exp2((z - z.amax(-1, keepdim=True).detach()) * math.log2(math.e))
    return e / e.sum(dim=-1, keepdim=True)


FORMS: dict[str, Form] = {
    "matmul": lambda z, v, w: z.softmax(-1) @ v,
    "einsum with dots": lambda z, v, w: torch.einsum("...ij,...jd->...id", z.softmax(-1), v),
    "einsum of sublists": lambda z, v, w: torch.einsum(
        z.softmax(-1), [..., 0, 1], v, [..., 1, 2], [..., 0, 2]
    ),
    "einsum without an arrow": lambda z, v, w: torch.einsum("...ab,...bc", z.softmax(-1), v),
    "heads mixed by einsum": lambda z, v, w: torch.einsum("bhij,hg->bgij", z.softmax(-1), w) @ v,
    "heads mixed by matmul": lambda z, v, w: (z.softmax(-1).permute(0, 2, 3, 1) @ w).permute(0, 3, 1, 2) @ v,
    "multiplied and summed": lambda z, v, w: (z.softmax(-1)[..., None] * v[:, :, None]).sum(-2),
    "multiplied, viewed and summed": lambda z, v, w: (
        (v[:, :, None] * z.softmax(-1).unsqueeze(-1)).transpose(-1, -2).sum(dim=(-1,))
    ),
    "one query": lambda z, v, w: (z[:, :, :1].softmax(-1).transpose(-2, -1) * v).sum(2, keepdim=True),
    "highest scores": lambda z, v, w: highest(z, v),
    "tensordot": lambda z, v, w: by_head(z, v, lambda p, u: torch.tensordot(p, u, dims=([1], [0]))),
    "mm": lambda z, v, w: by_head(z, v, torch.mm),
    "special.softmax": lambda z, v, w: torch.special.softmax(z, -1) @ v,
    "aten": lambda z, v, w: torch.ops.aten.matmul.default(torch.ops.aten._softmax(z, -1, False), v),
    "softmin": lambda z, v, w: F.softmin(-z, -1) @ v,
    "log_softmax": lambda z, v, w: z.log_softmax(-1).exp() @ v,
    "logsumexp": lambda z, v, w: (z - z.logsumexp(-1, keepdim=True)).exp() @ v,
    "logsumexp by hand": lambda z, v, w: logsumexp_by_hand(z) @ v,
    "quotient": lambda z, v, w: quotient(z) @ v,
    "quotient in place": lambda z, v, w: in_place(z) @ v,
    "quotient, computed twice": lambda z, v, w: z.exp() / z.exp().sum(-1, keepdim=True) @ v,
    "quotient, divided last": lambda z, v, w: divided_last(z, v),
    "quotient by einsum": lambda z, v, w: torch.einsum("bhij,bhjd->bhid", quotient(z), v),
    "quotient, heads mixed": lambda z, v, w: torch.einsum("bhij,hg->bgij", quotient(z), w) @ v,
    "quotient, multiplied and summed": lambda z, v, w: (quotient(z)[..., None] * v[:, :, None]).sum(-2),
    "quotient, summed, divided last": lambda z, v, w: summed(z, v),
    "divided by an einsum": lambda z, v, w: einsums(z, v),
    "divided by weighed ones": lambda z, v, w: by_ones(z, v),
    "scattered": lambda z, v, w: torch.zeros_like(z).scatter(-1, z.argsort(-1), z.sort(-1).values.softmax(-1)) @ v,
    "a linear map by values": lambda z, v, w: by_head(z, v, lambda p, u: F.linear(p, u.T)),
    "times a reciprocal": lambda z, v, w: reciprocal(z) @ v,
    "base two": lambda z, v, w: base_two(z) @ v,
    "normalised to one": lambda z, v, w: F.normalize(z.exp(), p=1.0, dim=-1) @ v,
    "off by one": lambda z, v, w: off_by_one(z, v, shifted=False),
    "off by one, shifted": lambda z, v, w: off_by_one(z, v, shifted=True),
    "online": lambda z, v, w: online(z, v),
    "vmap over heads": lambda z, v, w: torch.vmap(lambda a, b: a.softmax(-1) @ b, in_dims=1, out_dims=1)(z, v),
    "vmap over images and heads": lambda z, v, w: torch.vmap(torch.vmap(lambda a, b: a.softmax(-1) @ b))(z, v),
}  # fmt: skip


class Written(nn.Module):
    """Attention over 64 tokens, in one of the forms; `scale` multiplies its scores."""

    def __init__(self, form: Form, scale: float | Tensor = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.head = nn.Linear(12, 3 * 12), nn.Linear(12, 10)
        self.mixing = nn.Parameter(torch.rand(HEADS, HEADS))
        self.form, self.scale, self.num_heads = form, scale, HEADS

    def forward(self, x: Tensor) -> Tensor:
        tokens = F.avg_pool2d(x, 4).flatten(2).transpose(1, 2)
        tokens = torch.cat([tokens, tokens.sin(), tokens.cos(), tokens.square()], -1)
        q, k, v = self.qkv(tokens).unflatten(-1, (3, HEADS, WIDTH)).permute(2, 0, 3, 1, 4)
        out = self.form(q @ k.transpose(-2, -1) * 3 * self.scale, v, self.mixing)
        logits: Tensor = self.head(out.transpose(1, 2).flatten(2).mean(1))
        return logits


def logits(victim: nn.Module, x: Tensor = X) -> Tensor:
    with frozen(victim), torch.no_grad():
        return victim(x)


def written(name: str, scale: float | Tensor = 1.0) -> Victim:
    return as_victim(Written(FORMS[name], scale), X)


@pytest.mark.parametrize("name", FORMS)
def test_a_form_is_found_and_scaled(name: str) -> None:
    victim = written(name)
    layers = attention_layers(victim, X)
    assert len(layers) == 1, layers.ignored
    plain = logits(victim)
    for per, shape in (("layer", (1,)), ("sample", (2, 1))):
        assert torch.equal(logits(Rescaled(victim, torch.ones(shape), per=per, layers=layers)), plain), per  # type: ignore[arg-type]
    for scale in (0.5, 1e-3, 5.0):
        scaled = logits(Rescaled(victim, torch.tensor([scale]), layers=layers))
        assert torch.allclose(scaled, logits(written(name, scale)), atol=1e-5) and not torch.allclose(scaled, plain)
    mixed = logits(Rescaled(victim, torch.tensor([[1.0], [0.1]]), per="sample", layers=layers))
    assert torch.allclose(mixed[0], plain[0], atol=1e-6)
    assert torch.allclose(mixed[1], logits(written(name, 0.1))[1], atol=1e-5)
    assert torch.equal(logits(victim), plain) and not _get_current_function_mode_stack()


HEADS_OUTSIDE = {"vmap over heads"}


@pytest.mark.parametrize("name", [name for name in FORMS if name not in HEADS_OUTSIDE])
def test_heads_are_scaled_one_by_one(name: str) -> None:
    victim = written(name)
    scales = torch.tensor([1.0, 0.5, 0.1])
    assert torch.equal(logits(Rescaled(victim, torch.ones(1, HEADS), per="head")), logits(victim))
    scaled = logits(Rescaled(victim, scales[None], per="head"))
    assert torch.allclose(scaled, logits(written(name, scales.view(HEADS, 1, 1))), atol=1e-5)


@pytest.mark.parametrize(
    "name", [name for name in FORMS if name not in ("online", "scattered", "one query", "highest scores")]
)
def test_scores_are_observed_up_to_a_shift_of_the_row(name: str) -> None:
    victim = written(name)
    layers = attention_layers(victim, X)
    seen: list[Seen] = []
    with frozen(victim), torch.no_grad(), AttentionTap(layers, observe=seen.append):
        victim(X)
    factor = math.log(2) if name == "base two" else 1.0
    expected: list[Tensor] = []
    with frozen(victim), torch.no_grad():
        Written(lambda z, v, w: (expected.append(z), v)[1])(X)
    rows = seen[0].by_head(seen[0].scores(torch.float64) * factor)
    wanted = expected[0].double().movedim(1, 0).reshape(rows.shape)
    assert len(seen) == 1 and torch.allclose(
        rows - rows.amax(-1, keepdim=True), wanted - wanted.amax(-1, keepdim=True), atol=1e-4
    )


def test_gradients_reach_scales_of_every_form() -> None:
    for name in FORMS:
        victim = written(name).double()
        x = X.double()
        layers = attention_layers(victim, x)
        scale = torch.tensor([0.7], dtype=torch.float64, requires_grad=True)

        def loss(s: Tensor, victim: Victim = victim, layers: object = layers) -> Tensor:
            return Rescaled(victim, s, layers=layers)(X.double()).square().sum()  # type: ignore[arg-type]

        with frozen(victim):
            (found,) = torch.autograd.grad(loss(scale), scale)
            step = torch.tensor([1e-5], dtype=torch.float64)
            with torch.no_grad():
                difference = (loss(scale + step) - loss(scale - step)) / 2e-5
        assert torch.allclose(found, difference, rtol=1e-5), name


@pytest.mark.parametrize("name", ["quotient", "log_softmax", "quotient in place", "quotient, divided last"])
def test_backward_only_leaves_the_forward_of_a_softmax_by_hand(name: str) -> None:
    victim = written(name)
    view = BackwardOnly(victim, torch.tensor([0.5]), attention_layers(victim, X))
    assert torch.allclose(logits(view), logits(victim), atol=1e-6)
    with pytest.raises(UsageError, match="can be scaled but not replaced"):
        part = written("online")
        logits(BackwardOnly(part, torch.tensor([0.5]), attention_layers(part, X)))


class NoAttention(nn.Module):
    """Exponentials that are no attention."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.squeeze, self.head = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 8), nn.Linear(8, 5)
        self.experts = nn.Parameter(torch.rand(8, 64))
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        e = x.exp()
        if self.how == "sigmoid by hand":
            x = x / (1 + (-x).exp())
        elif self.how == "squeeze and excite":
            x = x * (1 / (1 + (-self.squeeze(x.mean((2, 3)))).exp()))[..., None, None]
        elif self.how == "soft pooling":
            x = (e * x).flatten(2).sum(-1)[..., None, None] / e.flatten(2).sum(-1)[..., None, None]
        elif self.how == "soft pooling by einsum":
            x = (torch.einsum("bcn,bcn->bc", e.flatten(2), x.flatten(2)) / e.flatten(2).sum(-1))[..., None, None]
        elif self.how == "branches":
            branches = torch.stack([x, x.relu()], 1)
            e = branches.mean((3, 4), keepdim=True).exp()
            x = (branches * (e / e.sum(1, keepdim=True))).sum(1)
        elif self.how == "a gate":
            e = self.squeeze(x.flatten(2).transpose(1, 2)).exp()
            x = ((e / e.sum(1, keepdim=True)).transpose(1, 2) * x.flatten(2))[..., None]
        elif self.how == "dynamic convolution":
            chosen = self.squeeze(x.mean((2, 3))).exp()
            weight = torch.mm(chosen / chosen.sum(1, keepdim=True), self.experts.flatten(1))
            x = F.conv2d(x, weight.view(len(x) * 8, 8, 1, 1)[:8])
        elif self.how == "log-sum-exp pooling":
            x = e.flatten(2).sum(-1).log()[..., None, None]
        elif self.how == "linear attention":
            q, k = e.flatten(2).transpose(1, 2), e.flatten(2).transpose(1, 2)
            v = x.flatten(2).transpose(1, 2)
            out = q @ (k.transpose(1, 2) @ v) / (q @ k.sum(1, keepdim=True).transpose(1, 2))
            x = out.transpose(1, 2)[..., None]
        logits: Tensor = self.head(x.mean((2, 3)))
        if self.how == "probabilities":
            logits = logits.exp() / logits.exp().sum(1, keepdim=True)
        return logits


@pytest.mark.parametrize(
    "how",
    [
        "sigmoid by hand", "squeeze and excite", "soft pooling", "soft pooling by einsum", "branches", "a gate",
        "dynamic convolution", "log-sum-exp pooling", "linear attention", "probabilities",
    ],
)  # fmt: skip
def test_exponentials_that_are_no_attention(how: str) -> None:
    layers = attention_layers(as_victim(NoAttention(how), X), X)
    assert len(layers) == 0 and layers.calls == () and layers.ignored == ()


class Flexible(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.head = nn.Linear(12, 3 * 48), nn.Linear(48, 10)
        self.bias = torch.rand(HEADS)
        self.scale: float | Tensor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        from torch.nn.attention.flex_attention import flex_attention

        tokens = F.avg_pool2d(x, 4).flatten(2).transpose(1, 2)
        tokens = torch.cat([tokens, tokens.sin(), tokens.cos(), tokens.square()], -1)
        q, k, v = self.qkv(tokens).unflatten(-1, (3, HEADS, 16)).permute(2, 0, 3, 1, 4)
        scale = torch.as_tensor(self.scale).expand(HEADS)

        def bias(z: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            z = (z + self.bias[h]) * scale[h]
            return torch.where(j > 60, -math.inf, z)

        logits: Tensor = self.head(flex_attention(q, k, v, score_mod=bias).transpose(1, 2).flatten(2).mean(1))
        return logits


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.skipif(sys.platform == "win32", reason="flex_attention needs dynamo")
def test_flex_attention_is_scaled_by_its_score_mod() -> None:
    victim, changed = as_victim(Flexible(), X), as_victim(Flexible(), X)
    layers = attention_layers(victim, X)
    assert [(layer.kind, layer.heads, layer.fused) for layer in layers.layers] == [("flex", HEADS, True)]
    plain = logits(victim)
    for per, shape in (("layer", (1,)), ("head", (1, HEADS)), ("sample", (2, 1))):
        assert torch.equal(logits(Rescaled(victim, torch.ones(shape), per=per, layers=layers)), plain)  # type: ignore[arg-type]
    scales = torch.tensor([1.0, 0.5, 0.1])
    changed.model.scale = scales
    assert torch.allclose(logits(Rescaled(victim, scales[None], per="head", layers=layers)), logits(changed), atol=1e-5)
    assert torch.allclose(plain, logits(victim))
    seen: list[Seen] = []
    with frozen(victim), torch.no_grad(), AttentionTap(layers, observe=seen.append):
        victim(X)
    masked = seen[0].masked()
    assert masked is not None and bool(masked[..., 61:].all()) and not bool(masked[..., :61].any())
    scale = torch.tensor([0.7], requires_grad=True)
    with frozen(victim):
        (grad,) = torch.autograd.grad(Rescaled(victim, scale, layers=layers)(X).square().sum(), scale)
    assert float(grad.abs()) > 0
    same = BackwardOnly(victim, torch.tensor([0.5]), layers)
    assert torch.allclose(logits(same), plain, atol=1e-5)


class Encoder(nn.Module):
    """Attention in Python, then a block that may be scripted or traced."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second, self.head = first, second, nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = F.avg_pool2d(x, 4).flatten(2).transpose(1, 2).repeat(1, 1, 4)
        logits: Tensor = self.head(self.second(self.first(tokens)).mean(1))
        return logits


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qk = nn.Linear(12, 24)

    def forward(self, t: Tensor) -> Tensor:
        q, k = self.qk(t).chunk(2, -1)
        return t + torch.softmax(q @ k.transpose(1, 2), -1) @ t


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_traced_modules_are_named_as_what_cannot_be_seen() -> None:
    torch.manual_seed(0)
    tokens = torch.rand(2, 64, 12)
    for compiled in (torch.jit.trace(Block(), tokens), torch.jit.script(Block())):
        whole = as_victim(Encoder(compiled, compiled), X)
        with pytest.raises(UsageError, match="none that I can see.*cannot be seen inside a traced module") as said:
            attention_layers(whole, X).require("there is nothing to scale")
        assert "\n" not in str(said.value)
        half = attention_layers(as_victim(Encoder(Block(), compiled), X), X)
        assert len(half) == 1 and half.unseen[0][0] == "model.second"
        assert "1 attention softmax is seen, 1 more cannot be" in str(half.coverage())
    assert attention_layers(as_victim(Encoder(Block(), Block()), X), X).coverage() is None


def test_kernels_that_hide_their_scores_are_counted() -> None:
    class Hidden(Block):
        def forward(self, t: Tensor) -> Tensor:
            q, k = self.qk(t)[:, None].chunk(2, -1)
            out, _ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, t[:, None])
            return t + out[:, 0]

    torch.manual_seed(0)
    layers = attention_layers(as_victim(Encoder(Block(), Hidden()), X), X)
    assert [layer.name for layer in layers.layers] == ["model.first"]
    assert layers.unseen[0][0] == "model.second" and "hides its scores" in str(layers.coverage())


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_results_say_how_much_attention_is_seen() -> None:
    torch.manual_seed(0)
    model = Encoder(Block(), torch.jit.script(Block())).eval()
    x = toy_pictures(4)
    with torch.no_grad():
        y = model(x).argmax(1)
    wanted = "1 attention softmax is seen, 1 more cannot be: it cannot be seen inside a traced module"
    assert wanted in diagnose(model, (x, y), threads=1).json()["coverage"]
    text = "aas(pgd(steps=1), restarts=1, steps=1, batch=2, calibration=2)"
    found = evaluate(
        model, text, data=from_tensors(x, y), calibration=from_tensors(toy_pictures(4, seed=9), y), threads=1
    )
    (section,) = found.results[0].sections
    assert any(wanted in note for note in section.tables[0].notes)
    assert "coverage" not in diagnose(Encoder(Block(), Block()).eval(), (x, y), threads=1).json()
