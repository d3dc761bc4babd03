"""Golden cases as data: what is run, what it needs, which part runs in `make test`, and which differences are meant.

Names never change, since records are stored under them; texts may, through `RENAMED`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

MODELS = ("tiny-vit", "tiny-vit-standard", "tiny-cnn-standard", "tiny-vit-aas", "tiny-vit-saturated")
LINF, L2, L1, L0, SPATIAL, PATCH = "linf:8/255", "l2:0.5", "l1:12", "l0:20px", "spatial", "patch:6px"
# Budgets that leave some images of the small transformer standing.
SMALLER = {
    LINF: "linf:0.5/255",
    L2: "l2:0.02",
    L1: "l1:0.7",
    L0: "l0:4px",
    SPATIAL: "spatial:1px,2deg",
    PATCH: "patch:2px",
}

# Old text -> new text, wherever it stands as a whole word in an attack text, a model id, an evidence key or an output:
# "pgd(preset=s003)" -> "pgd(preset=bhojanapalli2021)". Cases and stored records are read through this table.
RENAMED: dict[str, str] = {
    "preset=s001": "preset=light2023",
    "preset=s002": "preset=aas2024",
    "preset=s003": "preset=bhojanapalli2021",
}


@dataclass(frozen=True)
class Listed:
    """A difference that is meant: cases and places by pattern, at most how grave, and the reason in one line."""

    cases: str
    where: str
    most: Literal["rounding", "bytes", "value"]
    reason: str


PULLED_BACK = "the price of FAB, and so of AutoAttack, holds the gradient of the first point that is pulled back"

FIDELITY = "auto looks at the gradients of a block's first images before it follows them"
LISTED: tuple[Listed, ...] = (
    Listed("bench/demo", "result.front*", "value", "the front is of worst cases, and a paired test decides on it"),
    Listed("bench/demo", "result.worst_case*", "value", "the worst case of each model is new"),
    Listed("prices/attacks", "result*.backwards", "value", PULLED_BACK),
    Listed("plan/*", "result*backwards", "value", PULLED_BACK),
    Listed("plan/*", "result*flops*", "value", PULLED_BACK),
    Listed("plan/*", "result*hours*", "value", PULLED_BACK),
    Listed("plan/*", "result.least", "value", PULLED_BACK),
    Listed("plan/*", "result*rate*", "value", "plans are priced at a stated throughput: else this machine is measured"),
    Listed("craft/*", "result.evidence.distance", "value", "a missing distance is inf, where it was -1"),
    *(
        Listed(case, where, most, FIDELITY)
        for case in ("*/auto", "option/auto-*", "default/auto/*", "prices/attacks", "plan/*", "bench/*", "eval/*")
        for where, most in (
            ("samples*.evidence.*", "bytes"),
            ("samples*wards", "bytes"),
            ("result*forwards", "value"),
            ("result*backwards", "value"),
            ("result*.auto.*", "value"),
            ("result.evidence.*wards", "value"),
            ("result.evidence.fidelity", "value"),
        )
    ),
)


@dataclass(frozen=True)
class Evaluation:
    """A call of `vitattack.evaluate`."""

    name: str
    attack: str
    threat: str = LINF
    model: str = "tiny-vit"
    limit: int = 48
    options: Mapping[str, Any] = field(default_factory=dict)
    needs: str | None = None  # a package that may be missing


@dataclass(frozen=True)
class Crafting:
    """A call of `vitattack.attack` on a small transformer: the digest of every pixel it makes."""

    name: str
    attack: str
    threat: str
    needs: str | None = None
    unsteady: tuple[str, ...] = ("result.pixels", "result.evidence.*")


@dataclass(frozen=True)
class Diagnosis:
    """A call of `vitattack.diagnose`."""

    name: str
    model: str
    limit: int
    unsteady: tuple[str, ...] = ()


@dataclass(frozen=True)
class Command:
    """A run of the `vitattack` command that prints JSON; `stores` where it takes --out."""

    name: str
    words: tuple[str, ...]
    stores: bool = False
    measures: bool = True  # False where no pixel is looked at: equal on every machine
    unsteady: tuple[str, ...] = ()  # places that are not compared on another machine


@dataclass(frozen=True)
class Training:
    """A run of `vitattack train`: the digest of its weights and the numbers it logs."""

    name: str
    words: tuple[str, ...]
    unsteady: tuple[str, ...] = ()


Case = Evaluation | Crafting | Diagnosis | Command | Training

GIVEN = "given(pgd(steps=3), scales=(({}),))"  # a factor for every attention layer of the model
# The quick text of every registered attack, once.
QUICK = {
    "aas": "aas(pgd(steps=3), restarts=2, steps=2, batch=4, calibration=4)",
    "aas_literal": "aas_literal(pgd(steps=3), batches=2, steps=2, batch=4)",
    "admix": "admix(pgd(steps=3), others=2, scales=2)",
    "apgd": "apgd(steps=5)",
    "apgd_ce": "apgd_ce(steps=5)",
    "apgd_dlr": "apgd_dlr(steps=5)",
    "apgd_t": "apgd_t(steps=5, k=2)",
    "attention_fool": "attention_fool(pgd(steps=3))",
    "auto": "auto(steps=2, k=2, long=4)",
    "autoattack": "autoattack(steps=3, queries=5)",
    "autoattack_ref": "autoattack_ref(stages=('apgd-ce',), steps=10)",
    "cw": "cw(steps=3)",
    "cw_l2": "cw_l2(searches=2, steps=12)",
    "ddn": "ddn(steps=8, start=0.3)",
    "deepfool": "deepfool(steps=4)",
    "di": "di(pgd(steps=3))",
    "dlr": "dlr(steps=3)",
    "eot": "eot(pgd(steps=2), n=2)",
    "fab": "fab(steps=6)",
    "fab_t": "fab_t(steps=6, targets=2)",
    "fgsm": "fgsm",
    "fgsm_rs": "fgsm_rs",
    "fmn": "fmn(steps=8)",
    "fp64": "fp64(pgd(steps=3))",
    "gama": "gama(steps=4)",
    "gaussian": "gaussian(tries=3)",
    "given": GIVEN.format("0.5, 0.2, 0.5, 0.2, 0.5, 0.2"),
    "md": "md(steps=4)",
    "mifpe": "mifpe(steps=3)",
    "mim": "mim(steps=3)",
    "mm": "mm(k=2, steps=5)",
    "patchout": "patchout(pgd(steps=3))",
    "patch_fool": "patch_fool(steps=3)",
    "patch_pgd": "patch_pgd(steps=3, place=random(2))",
    "patch_universal": "patch_universal(steps=5, batch=8, tries=2)",
    "perceptual": "perceptual(pgd(steps=3), lpips=False)",
    "pgd": "pgd(steps=3)",
    "pma": "pma(steps=4)",
    "pna": "pna(pgd(steps=3))",
    "random": "random(tries=3)",
    "random_scales": "random_scales(pgd(steps=3), restarts=2, calibration=4)",
    "restarts": "restarts(2, pgd(steps=3))",
    "scale": "scale(0.5, pgd(steps=3))",
    "scale_search": "scale_search(pgd(steps=3), calibration=4)",
    "sgm": "sgm(pgd(steps=3))",
    "si": "si(pgd(steps=3), copies=2)",
    "sigma_zero": "sigma_zero(steps=40)",
    "spatial": "spatial(shifts=3, angles=5, calibration=4)",
    "spatial_random": "spatial_random(k=3)",
    "square": "square(queries=60)",
    "targets": "targets(pgd(steps=3), k=2)",
    "tgr": "tgr(pgd(steps=3))",
    "ti": "ti(pgd(steps=3))",
    "torchattacks": "torchattacks('APGD', steps=3)",
    "transfer": 'transfer("tiny-vit-standard", pgd(steps=3))',
    "universal": "universal(steps=5, batch=8)",
    "vdc": "vdc(pgd(steps=3))",
    "worst": "worst(pgd(steps=3), gama(steps=4))",
}
ALSO_L1 = ("apgd", "apgd_t", "auto", "autoattack", "fab", "fab_t", "fmn", "square")
ONLY_L2 = ("cw_l2", "ddn")
ONLY_L0 = ("sigma_zero",)
ONLY_SPATIAL = ("spatial", "spatial_random")
ONLY_PATCH = ("patch_fool", "patch_pgd", "patch_universal")
NEEDS = {"autoattack_ref": "pyautoattack", "torchattacks": "torchattacks"}
# Attacks that learn from other images, which a call on bare images has none of.
LEARN = ("aas", "aas_literal", "patch_universal", "random_scales", "scale_search", "universal")
# Attacks that hold others, around spatial ones.
AROUND_SPATIAL = {
    "perceptual": "perceptual(spatial_random(k=3), lpips=False)",
    "restarts": "restarts(2, spatial_random(k=3))",
    "worst": "worst(spatial_random(k=3), spatial(shifts=3, angles=5, calibration=4))",
}

# Options that are registries of their own, a few steps each.
LOSSES = (
    "ce",
    "ce_targeted",
    "dlr",
    "dlr_targeted",
    "gama",
    "kl_to",
    "margin",
    "margin_targeted",
    "mifpe",
    "pm",
    "pm_lead",
)
STARTS = ("clean", "corner", "edge", "gauss", "odi", "uniform")
RULES = ("auto_step", "heavy_ball", "momentum", "normalised", "sign", "steepest")
PRESETS = {
    "madry": "madry",
    "light": "s001",
    "aas": "s002",
    "bhojanapalli": "s003",
    "trades": "trades",
    "trades-train": "trades_train",
}
OPTIONS = {
    **{f"loss-{name}": f"pgd(steps=4, loss={name})" for name in LOSSES},
    **{f"start-{name}": f"pgd(steps=3, start={name})" for name in STARTS},
    **{f"rule-{name}": f"pgd(steps=4, rule={name})" for name in RULES},
    **{f"preset-{name}": f"pgd(preset={text})" for name, text in PRESETS.items()},
    "schedule": "pgd(steps=4, rule=heavy_ball(size=2, schedule=cosine))",
    "stop": "pgd(steps=3, stop=never)",
    "targets-least": "targets(pgd(steps=3), k=2, which=least, loss=ce)",
    "targets-random": "targets(pgd(steps=3), k=2, which=random, loss=dlr)",
    "square-few": "square(queries=12)",
    "square-rescale": "square(queries=60, rescale=True)",
    "auto-passes": "auto(steps=2, k=2, long=4, passes=60)",
    "auto-until": "auto(steps=2, k=2, long=4, until=converged)",
    "spatial-grid": "spatial(shifts=3, angles=3, full_grid=True)",
    "autoattack-plus": "autoattack(version=plus, steps=3, queries=5)",
}
# Attacks through attention, and some of their options.
THROUGH_ATTENTION = {
    **{name: QUICK[name] for name in ("aas", "aas_literal", "random_scales", "scale", "given")},
    "scale_search": "scale_search(pgd(steps=3), calibration=16, grid=(1.0, 0.5, 0.3))",
    "scale-backward": "scale(0.5, pgd(steps=3), mode=backward_only)",
    "aas-heads": "aas(pgd(steps=3), restarts=2, steps=2, batch=4, calibration=4, per=head, include_logits=True)",
    "aas-lpips": "aas(pgd(steps=3), restarts=2, steps=2, batch=4, calibration=4, objective=lpips, tap=attention)",
    "aas-margin": "aas(pgd(steps=3), restarts=2, steps=2, batch=4, calibration=4, objective=margin, optimiser=sign)",
}

# Attacks as they are run by default.
DEFAULTS = {
    "pgd": "pgd",
    "gama": "gama",
    "apgd_t": "apgd_t",
    "fab_t": "fab_t",
    "aas+pgd": "aas+pgd",
    "auto": "auto",
    "spatial": "spatial",
    "transfer": 'transfer("{source}", pgd(stop=never, preset=s003))',
}
FEWER: dict[str, int] = {}

# Thirty steps: 96 images in batches of 16, five epochs.
STEPS = (
    "data=cifar10-calib",
    "validation=32",
    "probe=16",
    "batch_size=16",
    "epochs=5",
    "--device",
    "cpu",
    "--threads",
    "1",
    "--json",
)
# Probes on 16 images, and statistics of a transformer after thirty steps: other machines, other numbers.
PROBES = ("*.clean", "*.robust", "*.one_step", "*gap_*", "*grad_*", "result.best*", "weights*")

# Benchmarks that ship; their plans price every cell.
BENCHES = (
    "aas-figure3",
    "aas-figure4",
    "aas-figure5",
    "aas-table1-cifar10",
    "aas-table1-cifar100",
    "aas-table2-cifar10",
    "aas-table2-cifar100",
    "aas-table3-cifar10",
    "aas-table3-cifar100",
    "aas-table3-imagenet100",
    "aas-table4",
    "aas-table5-cifar10",
    "aas-table5-cifar100",
    "bhojanapalli-figure3",
    "bhojanapalli-spatial",
    "bhojanapalli-table2",
    "bhojanapalli-table3-a",
    "bhojanapalli-table3-c",
    "bhojanapalli-table3-clean",
    "bhojanapalli-table3-cue-conflict",
    "bhojanapalli-table3-r",
    "bhojanapalli-table4",
    "bhojanapalli-table5",
    "demo",
    "light-figure3",
    "light-table10",
    "light-table11",
    "light-table2a",
    "light-table2b",
    "light-table2c",
    "light-table2d",
    "light-table3",
    "light-table4a",
    "light-table4b",
    "light-table5",
    "light-table6",
    "light-table7a-caltech101",
    "light-table7a-flowers",
    "light-table7b",
    "light-table7c",
    "light-table7d",
    "light-table8",
    "light-table9",
    "masking",
    "robustbench-cifar10",
    "robustbench-cifar100",
    "robustbench-imagenet",
    "spatial",
    "tora-table1-a",
    "tora-table1-r",
    "tora-table1",
    "tora-table2-a",
    "tora-table2-r",
    "tora-table2",
    "transfer",
    "transferattack",
    "vit-vs-wrn-table1-cifar10-l2",
    "vit-vs-wrn-table1-cifar10-linf",
    "vit-vs-wrn-table1-cifar100",
    "vit-vs-wrn-table2",
    "vit-vs-wrn-table3",
    "vit-vs-wrn-table4",
    "vit-vs-wrn-table5",
    "vit-vs-wrn-table6-cifar10-l2",
    "vit-vs-wrn-table6-cifar10-linf",
    "vit-vs-wrn-table6-cifar100",
)


def quick() -> Iterator[Case]:
    for name, text in QUICK.items():
        if name in ONLY_SPATIAL:
            yield Evaluation(f"quick/spatial/{name}", text, SPATIAL)
            continue
        if name in ONLY_PATCH:
            yield Evaluation(f"quick/patch/{name}", text, PATCH)
            continue
        if name in ONLY_L0:
            yield Evaluation(f"quick/l0/{name}", text, L0)
            continue
        if name not in ONLY_L2:
            yield Evaluation(f"quick/linf/{name}", text, LINF, needs=NEEDS.get(name))
        yield Evaluation(f"quick/l2/{name}", text, L2, needs=NEEDS.get(name))
    for name, text in AROUND_SPATIAL.items():
        yield Evaluation(f"quick/spatial/{name}", text, SPATIAL)


def crafted() -> Iterator[Case]:
    for name, text in QUICK.items():
        if name in LEARN:
            continue
        text = GIVEN.format("0.3, 0.2") if name == "given" else text
        threats = (SPATIAL,) if name in ONLY_SPATIAL else (L2,) if name in ONLY_L2 else (LINF, L2)
        threats = (PATCH,) if name in ONLY_PATCH else threats
        threats = (L0,) if name in ONLY_L0 else (*threats, L1) if name in ALSO_L1 else threats
        for threat in threats:
            budget = threat if name in ONLY_L2 else SMALLER[threat]  # in so few steps it finds nothing nearer
            yield Crafting(f"craft/{threat.partition(':')[0]}/{name}", text, budget, NEEDS.get(name))
    for name, text in AROUND_SPATIAL.items():
        yield Crafting(f"craft/spatial/{name}", text, SMALLER[SPATIAL])


def saturated() -> Iterator[Case]:
    """Where looking through scaled attention finds what the plain model's gradients miss."""
    for name, text in THROUGH_ATTENTION.items():
        for threat in (LINF, L2):
            yield Evaluation(f"saturated/{threat.partition(':')[0]}/{name}", text, threat, "tiny-vit-saturated")


def options() -> Iterator[Case]:
    for name, text in OPTIONS.items():
        yield Evaluation(f"option/{name}", text, SPATIAL if name.startswith("spatial") else LINF)
    yield Evaluation("option/bf16-search", QUICK["auto"], options={"precision": "bf16-search"})
    yield Evaluation("option/budgets", "pgd(steps=3)", "linf:2/255,4/255,8/255", limit=16)
    yield Evaluation("option/seed", "pgd(steps=3)", options={"seed": 7})
    yield Evaluation("option/one-batch", "pgd(steps=3)", options={"batch_size": 48})


def defaults() -> Iterator[Case]:
    for name, text in DEFAULTS.items():
        for model in MODELS:
            if name.startswith("aas") and "cnn" in model:
                continue  # no attention
            source = "tiny-cnn-standard" if model == "tiny-vit-standard" else "tiny-vit-standard"
            threat = SPATIAL if name == "spatial" else LINF
            yield Evaluation(
                f"default/{name}/{model}", text.format(source=source), threat, model, limit=FEWER.get(name, 48)
            )


def commands() -> Iterator[Case]:
    few = ("--limit", "48", "--threads", "1", "--json")
    for model in ("tiny-vit", "tiny-vit-saturated"):
        yield Command(f"diagnose/{model}", ("diagnose-softmax", model, *few))
    yield Diagnosis("diagnose/call", "tiny-vit", 8)
    yield Command(
        "transfer/matrix",
        ("transfer", "tiny-vit", "tiny-vit-standard", "tiny-cnn-standard", "--batch-size", "32", *few),
        stores=True,
    )
    yield Command(
        "eval/controls",
        ("eval", "tiny-vit-saturated", "pgd(steps=3)", QUICK["aas"], "--controls", "--batch-size", "32", *few),
        stores=True,
    )
    yield Command("bench/demo", ("bench", "demo", "--device", "cpu", "--json"), stores=True)
    yield Command("prices/attacks", ("attacks", "list", "--json"), measures=False)
    for name in BENCHES:
        yield Command(
            f"plan/{name}", ("bench", name, "--plan", "--throughput", "1T", "--json"), stores=True, measures=False
        )


def trainings() -> Iterator[Case]:
    yield Training("train/trades-tiny", ("train", "trades-tiny", *STEPS), PROBES)
    hooks = "hooks=[aas_at(every=2, batches=2), grad_clip(1.0), ema(0.998, warmup=0)]"
    yield Training("train/aas-at-tiny", ("train", "aas-at-tiny", hooks, "precision=fp32", *STEPS), PROBES)


CASES: dict[str, Case] = {
    case.name: case for group in (quick, crafted, saturated, options, defaults, commands, trainings) for case in group()
}

# A spread over families that takes under half a minute on one core; the rest is marked slow.
FAST = (
    *(name for name in CASES if name.startswith("craft/")),
    "quick/linf/fgsm",
    "quick/linf/pgd",
    "quick/l2/pgd",
    "quick/linf/apgd_t",
    "quick/linf/fab_t",
    "option/square-few",
    "quick/linf/auto",
    "quick/linf/aas",
    "quick/linf/transfer",
    "quick/linf/perceptual",
    "quick/spatial/spatial",
    "option/loss-margin",
    "option/budgets",
    "diagnose/call",
)
