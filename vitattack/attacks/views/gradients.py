"""Attacks through changed gradients of transformers by name, with the settings of their papers."""

from __future__ import annotations

from vitattack.attacks.base import Attack
from vitattack.attacks.catalogue import catalogued
from vitattack.attacks.views.through_view import ThroughView
from vitattack.models.blocks.names import Part
from vitattack.models.gradient_views.attention_fool import AttentionFool
from vitattack.models.gradient_views.branches import PayNoAttention, SkipGradient
from vitattack.models.gradient_views.token_gradients import TokenGradientRegularised
from vitattack.models.gradient_views.virtual_dense import VirtualDense


@catalogued(paper="Wei et al., AAAI 2022", quick="pna(pgd(steps=3))", needs_attention=True)
def pna(inner: Attack, *, share: float = 0.0) -> ThroughView:
    """Pay no attention: gradients pass through the values of attention, and not through its weights."""
    return ThroughView(inner, PayNoAttention(share), "pna")


@catalogued(
    paper="Wu et al., ICLR 2020; for transformers Wei et al., AAAI 2022",
    quick="sgm(pgd(steps=3))",
    needs_attention=True,
)
def sgm(inner: Attack, *, decay: float = 0.5, part: Part = "block") -> ThroughView:
    """Skip gradient method: gradients of residual branches are halved, so that more of them come along the skips.

    `part` chooses branches of attention or of mlp alone. In models without attention, blocks that add are decayed.
    """
    return ThroughView(inner, SkipGradient(decay, part), "sgm")


@catalogued(paper="Zhang et al., CVPR 2023", quick="tgr(pgd(steps=3))", needs_attention=True)
def tgr(inner: Attack, *, weights: float = 0.25, projections: float = 0.75, mlp: float = 0.5) -> ThroughView:
    """Token gradient regularisation: the largest and smallest token gradients go, the others are made smaller.

    Of attention weights, the rows and columns of both extremes; of queries, keys, values and of MLPs, the two tokens of
    every channel. The factors are those of the authors' code.
    """
    return ThroughView(inner, TokenGradientRegularised(weights, projections, mlp), "tgr")


@catalogued(paper="Zhang et al., AAAI 2024", quick="vdc(pgd(steps=3))", needs_attention=True)
def vdc(
    inner: Attack, *, attention_share: float = 0.25, mlp_share: float = 0.5, weight: float = 0.1, decay: float = 0.5
) -> ThroughView:
    """Virtual dense connection: deeper gradients are added to those of shallower attention and MLPs; two backwards a step.

    A gradient k blocks before the last weighs 0.1 x 0.5^k; own gradients weigh 1/4 in attention and 1/2 in MLPs.
    """
    return ThroughView(inner, VirtualDense(attention_share, mlp_share, weight, decay), "vdc")


@catalogued(paper="Lovisotto et al., CVPR 2022", quick="attention_fool(pgd(steps=3))", needs_attention=True)
def attention_fool(inner: Attack, *, weight: float = 1.0) -> ThroughView:
    """Attention-Fool: a loss on the scores before the softmax, added to that of the inner attack, draws all queries to one key.

    A soft maximum over heads and layers, as in the paper; the key is the one that draws most, where the paper has that of
    its patch. The paper divides queries and keys by their mean norms, which not all families show: here scores are
    divided by their root mean square.
    """
    return ThroughView(inner, AttentionFool(weight), "attention_fool")
