"""Our transform of a timm model against timm's own, on a wide and a tall image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import timm
from PIL import Image
from timm.data import create_transform, resolve_data_config

from vitattack.core.errors import UsageError
from vitattack.data.transform import make_transform
from vitattack.models.timm_config import timm_transform

SAMPLE = (
    "vit_base_patch16_224.augreg_in21k_ft_in1k",
    "vit_so400m_patch14_siglip_378.webli_ft_in1k",  # squash
    "eva02_base_patch14_448.mim_in22k_ft_in1k",  # squash
    "eva_large_patch14_336.in22k_ft_in1k",
    "deit3_base_patch16_384.fb_in22k_ft_in1k",
    "resnet50.a1_in1k",
    "resnet50.tv_in1k",  # bilinear
    "volo_d5_512.sail_in1k",  # crops more than there is
    "swin_base_patch4_window12_384.ms_in22k_ft_in1k",
)


def pictures() -> list[Image.Image]:
    """A wide, a tall and a square image of odd sizes."""
    drawn = np.random.default_rng(0)
    return [
        Image.fromarray(drawn.integers(0, 256, (height, width, 3), dtype=np.uint8)).resize(
            (2 * width + 1, 2 * height + 1)
        )
        for height, width in ((150, 311), (290, 133), (201, 201))
    ]


def difference(cfg: dict[str, Any], name: str) -> int | None:
    """The largest difference of a pixel; None where timm's way is refused."""
    resolved = resolve_data_config(pretrained_cfg=cfg)
    theirs = create_transform(**resolved, normalize=False)
    try:
        ours = make_transform(timm_transform(cfg, name))
    except UsageError as error:
        assert "not supported" in str(error)
        return None
    found = 0
    for picture in pictures():
        one, other = (np.asarray(made, dtype=int) for made in (ours(picture), theirs(picture).permute(1, 2, 0)))
        assert one.shape == other.shape, name
        found = max(found, int(np.abs(one - other).max()))
    return found


@pytest.mark.parametrize("name", SAMPLE)
def test_the_transform_of_a_timm_model_is_timms(name: str) -> None:
    cfg = timm.get_pretrained_cfg(name)
    assert cfg is not None and difference(cfg.to_dict(), name) == 0


@pytest.mark.slow
def test_the_transforms_of_all_timm_models_are_timms() -> None:
    """Each kind once: names that differ in nothing that a transform depends on share it."""
    kinds: dict[str, tuple[str, dict[str, Any]]] = {}
    for name in timm.list_pretrained():
        cfg = timm.get_pretrained_cfg(name).to_dict()
        kinds.setdefault(repr(resolve_data_config(pretrained_cfg=cfg)), (name, cfg))
    found = {name: difference(cfg, name) for name, cfg in kinds.values()}
    assert len(found) > 50 and {difference for difference in found.values() if difference} == set()
    refused = [name for name, difference in found.items() if difference is None]
    assert all(timm.get_pretrained_cfg(name).num_classes == 0 for name in refused)


def test_a_mode_that_pads_is_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match="border.*choose another model"):
        timm_transform({"input_size": (3, 224, 224), "crop_mode": "border"}, "timm:some.model")
