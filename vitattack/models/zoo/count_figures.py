"""Counts of parameters, FLOPs and attention layers of a zoo entry, without its weights and without memory for them."""

from __future__ import annotations

from dataclasses import replace

from vitattack.core.errors import UsageError
from vitattack.core.words import printable
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.clip.zero_shot import drop_text_tower
from vitattack.models.flops import ShapesOnly, ZerosForShapes, count_forward, count_forward_and_backward
from vitattack.models.victim import Victim
from vitattack.models.zoo.entry import ZooEntry
from vitattack.models.zoo.figures import LayerFigures, ModelFigures
from vitattack.models.zoo.load import build_victim


def count_figures(entry: ZooEntry) -> ModelFigures:
    """Build the model of an entry at its own input size and count; that takes seconds for a large one."""
    with ShapesOnly():
        victim = build_victim(entry).eval()
        drop_text_tower(victim.model)
    size, softmaxes = _counted(victim)
    if not softmaxes:  # a CNN, whose large feature maps the probe would follow in vain
        return size
    with ZerosForShapes():
        layers = attention_layers(victim, victim.grey()).layers
    attention = tuple(LayerFigures(layer.name, layer.heads, layer.fused, layer.kind) for layer in layers)
    return replace(size, attention=attention)


def count_size(victim: Victim) -> ModelFigures:
    """Count parameters and FLOPs of any victim at its input size; its attention layers are left out."""
    return _counted(victim)[0]


def _counted(victim: Victim) -> tuple[ModelFigures, int]:
    """The size of a victim without its attention layers, and the number of its softmaxes."""
    try:
        forward, softmaxes = count_forward(victim)
        backward = count_forward_and_backward(victim) - forward
    except Exception as error:  # an architecture meets an input that is not its own with whatever breaks first
        raise UsageError(
            f"'{victim.name}' cannot be run at {victim.size_in_words} px ({printable(str(error))}): correct its input and "
            "arch_kwargs"
        ) from error
    return ModelFigures(sum(p.numel() for p in victim.parameters()), forward, backward, ()), softmaxes
