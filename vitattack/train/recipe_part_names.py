"""Names a recipe may use for its objective, hooks, augmentations, optimiser and schedule; importing this loads no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vitattack.core.errors import UsageError
from vitattack.core.registry import Registry, did_you_mean
from vitattack.text.syntax import Call, parse_syntax

if TYPE_CHECKING:
    from vitattack.train.augment.base import Augmentation
    from vitattack.train.hooks.base import Hook
    from vitattack.train.objectives.base import Objective
    from vitattack.train.optim.optimisers import OptimiserFactory
    from vitattack.train.optim.rate_schedules import RateSchedule
    from vitattack.train.recipe import Recipe

OBJECTIVES: Registry[Callable[..., Objective]] = Registry("objective", entry_point_group="vitattack.objectives")
OBJECTIVES.add_lazily(
    "vitattack.train.objectives",
    {
        "standard": "standard:standard",
        "fgsm": "pgd_at:fgsm_at",
        "pgd_at": "pgd_at:pgd_at",
        "trades": "trades:trades",
        "mart": "mart:mart",
        "trade_off": "trade_off:trade_off",
        "tora_apart": "tora_apart:tora_apart",
    },
)

HOOKS: Registry[Callable[..., Hook]] = Registry("hook", entry_point_group="vitattack.hooks")
HOOKS.add_lazily(
    "vitattack.train.hooks",
    {
        "only": "only:Only",
        "awp": "awp:Awp",
        "aas_at": "aas_at:AasAt",
        "learned_scales": "aas_at:LearnedScales",
        "ard": "ard_prm:Ard",
        "prm": "ard_prm:Prm",
        "ema": "ema:Ema",
        "eps_warmup": "eps_warmup:EpsWarmup",
        "grad_clip": "grad_clip:GradClip",
        "logit_scale_log": "logit_scale_log:LogitScaleLog",
    },
)

AUGMENTATIONS: Registry[Callable[..., Augmentation]] = Registry(
    "augmentation", entry_point_group="vitattack.augmentations"
)
AUGMENTATIONS.add_lazily(
    "vitattack.train.augment",
    {
        "mixup": "mixup:MixUp",
        "randaugment": "randaugment:RandAugment",
        "crop": "geometry:Crop",
        "flip": "geometry:Flip",
        "resized_crop": "geometry:ResizedCrop",
        "rotation": "geometry:Rotation",
        "jitter": "pixels:Jitter",
        "erasing": "pixels:Erasing",
    },
)

OPTIMISERS: Registry[Callable[..., OptimiserFactory]] = Registry("optimiser", entry_point_group="vitattack.optimisers")
OPTIMISERS.add_lazily(
    "vitattack.train.optim", {"adamw": "optimisers:AdamW", "lion": "optimisers:Lion", "sgd": "optimisers:Sgd"}
)

RATE_SCHEDULES: Registry[Callable[..., RateSchedule]] = Registry("learning rate", entry_point_group="vitattack.rates")
RATE_SCHEDULES.add_lazily(
    "vitattack.train.optim",
    {
        "constant": "rate_schedules:ConstantRate",
        "cosine": "rate_schedules:CosineRate",
        "one_cycle": "rate_schedules:OneCycleRate",
        "drops": "rate_schedules:StepDecay",
    },
)


def check_part_names(recipe: Recipe) -> None:
    """Refuse unreadable texts and unknown names before anything heavy is imported; options are checked by `build_parts`."""
    texts: tuple[tuple[str, Registry[Any], tuple[str, ...]], ...] = (
        ("objective", OBJECTIVES, (recipe.objective,)),
        ("hooks", HOOKS, recipe.hooks),
        ("augment", AUGMENTATIONS, recipe.augment),
        ("optimiser", OPTIMISERS, (recipe.optimiser,)),
        ("rate", RATE_SCHEDULES, (recipe.rate,)),
    )
    for key, registry, names in texts:
        for text in names:
            try:
                node = parse_syntax(text)
            except UsageError as error:
                raise UsageError(f"{key}: {error}") from error
            if isinstance(node, Call) and node.name not in registry:
                raise UsageError(f"{key}: " + did_you_mean(registry.kind, node.name, registry))
