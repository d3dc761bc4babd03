"""The catalogue of analyses by name, in the order of their lists. Neither it nor any entry imports torch.

To add one, derive a frozen dataclass from `Analysis` and list it in `BUILT_IN`; docs/design.md says how.
"""

from __future__ import annotations

from vitattack.analyses.base import Analysis
from vitattack.core.registry import Registry

ANALYSES: Registry[type[Analysis]] = Registry("analysis", entry_point_group="vitattack.analyses")

BUILT_IN = {
    "effectiveness": "strength.questions:Effectiveness",
    "convergence": "strength.questions:Convergence",
    "pgd-steps": "strength.questions:PgdSteps",
    "eps-sweep": "strength.questions:EpsSweep",
    "curve": "strength.questions:Curve",
    "patch-certificate": "strength.questions:PatchCertificate",
    "semantic": "meaning.questions:Semantic",
    "features": "meaning.questions:Features",
    "lesion": "inside.questions:Lesion",
    "correlation": "inside.questions:Correlation",
    "cka": "inside.questions:Cka",
    "restricted": "inside.questions:RestrictedAttention",
    "eigencam": "inside.questions:EigenCam",
    "attention-map": "inside.questions:AttentionMaps",
    "gates": "inside.questions:Gates",
    "corruptions": "shifts.questions:Corruptions",
    "imagenet-a": "shifts.questions:ImagenetA",
    "imagenet-r": "shifts.questions:ImagenetR",
    "shape-bias": "shifts.questions:ShapeBias",
    "softmax-gaps": "aas.questions:SoftmaxGaps",
    "scaled-blocks": "aas.questions:ScaledBlocks",
    "aas-depth": "aas.questions:AasDepth",
    "aas-steps": "aas.questions:AasSteps",
    "aas-eps": "aas.questions:AasEps",
    "scatter": "landscape.questions:Scatter",
    "scaling": "landscape.questions:Scaling",
}
ANALYSES.add_lazily("vitattack.analyses", BUILT_IN)
