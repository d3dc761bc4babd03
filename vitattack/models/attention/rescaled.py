"""The view with rescaled attention scores."""

from __future__ import annotations

from torch import Tensor

from vitattack.models.attention.attention_map import AttentionMap, Per, check_scales
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.attention.sample_axes import with_sample_axes
from vitattack.models.attention.tap import AttentionTap
from vitattack.models.victim import Victim, View


class Rescaled(View):
    """The victim with its attention scores multiplied: scales are (L,), per head (L, H) or per sample (B, L).

    Scales may require grad. Position biases are scaled with the scores, masks are not. Scales of one leave the logits
    bit-identical; where scales require grad and the kernel takes a position bias, torch unfuses it to differentiate.
    """

    def __init__(
        self, victim: Victim, scales: Tensor, *, per: Per = "layer", layers: AttentionMap | None = None
    ) -> None:
        super().__init__(victim)
        layers = layers if layers is not None else attention_layers(victim, victim.grey())
        check_scales(layers, scales, per)
        self.layers = with_sample_axes(layers, victim) if per == "sample" else layers
        self.scales = scales
        self.per: Per = per
        self.name = f"{victim.name} rescaled"
        self.input_size, self.transform = victim.input_size, victim.transform

    def forward(self, x: Tensor) -> Tensor:
        with AttentionTap(self.layers, rescale=self.scales, per=self.per):
            logits: Tensor = self.victim(x)
        return logits
