"""Maps over images, clean and under attack: EigenCAM of the last block, and attention of every block."""

from __future__ import annotations

from torch import Tensor

from vitattack.analyses.findings import Findings
from vitattack.analyses.inside.map_numbers import Maker, map_findings
from vitattack.analyses.inside.probing import Probed, compared_blocks, open_all
from vitattack.analyses.inside.questions import AttentionMaps, EigenCam
from vitattack.analyses.measures.heatmaps import eigencam
from vitattack.analyses.run import AnalysisRun
from vitattack.core.errors import UsageError
from vitattack.models.blocks.activations import map_activations, token_activations
from vitattack.models.blocks.attended import attended, readable_layers, require_readable
from vitattack.models.blocks.tokens import block_tokens


def eigencam_maps(analysis: EigenCam, run: AnalysisRun) -> Findings:
    """Make EigenCAM of every model, and measure it."""
    makers = [_eigencam(probed) for probed in open_all(run)]
    return map_findings(analysis, run, makers, "EigenCAM")


def attention_maps(analysis: AttentionMaps, run: AnalysisRun) -> Findings:
    """Read the attention of every model to patches, and measure it block by block."""
    makers, remarks = [], []
    for probed in open_all(run):
        makers.append(_attention(probed))
        if len(makers[-1].labels) < len(probed.layers):
            remarks.append(
                f"{probed.name}: {len(makers[-1].labels)} of {len(probed.layers)} attention layers are maps over the image"
            )
        if makers[-1].about == "received":
            remarks.append(f"{probed.name}: it has no class token, so this is the attention that patches receive")
    return map_findings(analysis, run, makers, "attention", remarks)


def _eigencam(probed: Probed) -> Maker:
    victim = probed.prepared.victim
    blocks = compared_blocks(probed)
    if not probed.layers.layers:
        return Maker(probed, ("last",), "", lambda x: [eigencam(map_activations(victim, blocks, x))])
    tokens = block_tokens(victim, blocks)[blocks[-1]]
    if tokens is None:
        raise UsageError(
            f"tokens of the last block of '{probed.name}' do not lie on a grid in the order of the image, so they are no map"
        )
    return Maker(probed, ("last",), "", lambda x: [eigencam(token_activations(victim, blocks[-1], tokens, x))])


def _attention(probed: Probed) -> Maker:
    victim = probed.prepared.victim
    readable = readable_layers(victim, probed.layers)
    require_readable(probed.layers, readable, probed.name)
    last = [*readable.values()][-1]

    def make(x: Tensor) -> list[Tensor]:
        return [*attended(victim, probed.layers, readable, x).values()]

    return Maker(probed, tuple(map(str, readable)), last.kind, make)
