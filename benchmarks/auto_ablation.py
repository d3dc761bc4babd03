"""`auto` with each stage taken out, cut short or joined by another: who stands then, and what it costs.

    python benchmarks/auto_ablation.py --out runs/ablation --models tiny-vit=128 tiny-vit-saturated=128 tiny-vit+logits=128
    python benchmarks/auto_ablation.py --out runs/ablation --models FILE.safetensors=500 --arch ARCH --normalize cifar10

A model is a text as in `vitattack eval` and a number of images of --data. `+FAULT` plants masked gradients: logits x 1e3,
attention scores x 1e3, or a quantiser in front whose gradient is zero. --only takes some variants, by their first letters.
Stages draw the same noise in every variant, so what a variant shares with another one is run once; a sum over another
batch may still differ in its last bit. Finished variants are kept in --out: give a new one after a change of the code.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from planted import named
from torch import Tensor, nn

from vitattack import spec
from vitattack.attacks.auto import Auto, Stage
from vitattack.attacks.base import Attack, Crafted, Holder, blank_search
from vitattack.attacks.gradient import Gradient
from vitattack.data import DataSet, load
from vitattack.evaluation.judge import clean_predictions, judge
from vitattack.evaluation.records import SampleRecord
from vitattack.models import zoo
from vitattack.models.probing import attention_layers
from vitattack.models.rescaled import Rescaled
from vitattack.models.victim import Victim, digest
from vitattack.rng import SampleRng
from vitattack.threat import LpBall, Threat
from vitattack.threat import parse as parse_threat

HEAVY = "rule=heavy_ball(size=2, schedule=cosine)"
# What `auto` could have and does not: each as the last stage of a round, then at the end of the opening.
LATER = {
    "fp64 apgd_ce 20": "fp64(apgd_ce(steps=20))",
    "mifpe 50": "mifpe(steps=50)",
    "pm 100": "apgd(steps=100, loss=pm)",
    "pma 50": "pma(steps=50)",
    "dlr 100": "apgd(steps=100, loss=dlr)",
    "odi 20": f"pgd(steps=20, loss=margin, start=odi, {HEAVY})",
    "apgd_t 30": "targets(apgd(steps=30))",
    "fab_t 10": "fab_t(steps=10)",
    "square 300": "square(queries=300)",
}
EARLY = {
    "pm 8": f"pgd(steps=8, loss=pm, start=corner, {HEAVY})",
    "mifpe 8": f"pgd(steps=8, loss=mifpe, start=corner, {HEAVY})",
    "dlr 8": f"pgd(steps=8, loss=dlr, start=corner, {HEAVY})",
    "ce 8": f"pgd(steps=8, loss=ce, start=corner, {HEAVY})",
    "odi 8": f"pgd(steps=8, loss=margin, start=odi, {HEAVY})",
}
SETTINGS = {
    **{f"{k} targets": f"k={k}" for k in (3, 5, 7)},
    **{f"targets of {n} steps": f"steps={n}" for n in (2, 3, 4, 8)},
    **{f"{k} targets of {n} steps": f"k={k}, steps={n}" for k, n in ((5, 8), (5, 3), (3, 8))},
    **{f"long runs of {n} steps": f"long={n}" for n in (25, 50, 200)},
}


def built(text: str, ball: LpBall) -> Auto:
    found = spec.build(text, ball)
    assert isinstance(found, Auto)
    return found


def without(whole: Auto, *names: str) -> Auto:
    opening, rounds = (tuple(s for s in part if s.name not in names) for part in (whole.opening, whole.rounds))
    return replace(whole, opening=opening, rounds=rounds)


def corner(whole: Auto, steps: int) -> Auto:
    first, *rest = whole.opening
    assert isinstance(first.attack, Gradient)
    return replace(whole, opening=(first._replace(attack=replace(first.attack, steps=steps)), *rest))


def variants(ball: LpBall) -> dict[str, Auto]:
    """Every variant by its name, the whole of it first."""
    whole = built("auto", ball)
    stages = (*whole.opening, *whole.rounds)
    views = [stage for stage in stages if stage.scale != 1]
    found = {"whole": whole} | {f"without {stage.name}": without(whole, stage.name) for stage in stages}
    found["without views"] = without(whole, *(view.name for view in views))
    found["without rounds"] = replace(whole, rounds=())
    found |= {f"share 1/{n}": replace(whole, share=1 / n) for n in (16, 8, 2, 1)}
    found |= {f"at most {n} rounds": replace(whole, most=n) for n in (1, 2)}
    found |= {f"corner of {n} steps": corner(whole, n) for n in (4, 16)}
    found |= {name: built(f"auto({text})", ball) for name, text in SETTINGS.items()}
    always = tuple(Stage(f"{view.name}, always", Through(view.attack, view.scale)) for view in views)
    found["views whatever the attention"] = replace(whole, rounds=(*whole.rounds, *always))
    for name, text in LATER.items():
        found[f"with {name}"] = replace(whole, rounds=(*whole.rounds, Stage(name, spec.build(text, ball))))
    for name, text in EARLY.items():
        found[f"opening with {name}"] = replace(whole, opening=(*whole.opening, Stage(name, spec.build(text, ball))))
    return found


@dataclass(frozen=True)
class Through(Holder):
    """An attack through a view with scaled attention, asked for or not."""

    inner: Attack
    scale: float

    def __call__(self, victim: nn.Module, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        assert isinstance(victim, Victim)
        layers = attention_layers(victim, victim.grey())
        return self.inner(Rescaled(victim, torch.full((len(layers),), self.scale), layers=layers), x, y, rng=rng)


@dataclass(frozen=True)
class Remembered(Holder):
    """An attack whose outcome on a sample is kept, with the evidence `auto` reads where the attack gives none."""

    inner: Attack
    scale: float
    kept: dict[tuple[str, float, str, int], tuple[Tensor, dict[str, Tensor]]] = field(repr=False)

    def __call__(self, victim: nn.Module, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        keys = [(repr(self.inner), self.scale, rng.path, index) for index in rng.index]
        new = torch.tensor([key not in self.kept for key in keys], dtype=torch.bool)
        if bool(new.any()):
            found = self.inner(victim, x[new], y[new], rng=rng[new])
            evidence = blank_search(x[new]) | dict(found.evidence)
            evidence["margin"] = evidence["margin"].to(x.dtype)
            for at, row in enumerate(new.nonzero().flatten().tolist()):
                told = {name: evidence[name][at] for name in blank_search(x[:0])}
                self.kept[keys[row]] = (found.x_adv[at].to(x.dtype), told)
        rows = [self.kept[key] for key in keys]
        return Crafted(
            torch.stack([image for image, _ in rows]),
            {name: torch.stack([told[name] for _, told in rows]) for name in rows[0][1]},
        )


def attacked(victim: Victim, attack: Auto, threat: Threat, data: DataSet) -> list[SampleRecord]:
    """Records as an evaluation makes them; passes are those the attack tells of, since what is remembered runs once."""
    records = []
    for rows in data.cut(attack.block):
        x, y = data.read(rows)
        clean = torch.cat([clean_predictions(victim, part) for part in torch.split(x, attack.chunk)])
        right, rng = clean == y, SampleRng(0, tuple(rows))
        crafted = attack(victim, x[right], y[right], rng=rng[right])
        forwards, backwards = (crafted.evidence[name] for name in ("forwards", "backwards"))
        records += judge(victim, threat, rows, x, y, clean, crafted, forwards, backwards)
    return records


def remembering(attack: Auto, kept: dict[tuple[str, float, str, int], tuple[Tensor, dict[str, Tensor]]]) -> Auto:
    parts = (
        (s._replace(attack=Remembered(s.attack, s.scale, kept)) for s in p) for p in (attack.opening, attack.rounds)
    )
    opening, rounds = map(tuple, parts)
    return replace(attack, opening=opening, rounds=rounds)


def run(
    victim: Victim, made: Mapping[str, Auto], threat: Threat, data: DataSet, out: Path
) -> dict[str, list[SampleRecord]]:
    """Records of every variant on one model, from --out where they are."""
    out.mkdir(parents=True, exist_ok=True)
    about, found = f"{digest(victim)} {data.digest()} {threat}", {}
    kept: dict[tuple[str, float, str, int], tuple[Tensor, dict[str, Tensor]]] = {}
    for name, attack in made.items():
        path = out / f"{hashlib.sha256(f'{about} {attack!r}'.encode()).hexdigest()[:16]}.jsonl"
        if not path.exists():
            records = attacked(victim, remembering(attack, kept), threat, data)
            partial = path.with_suffix(".partial")
            partial.write_text("".join(record.line() + "\n" for record in records))
            partial.replace(path)
        found[name] = [SampleRecord.parse(line) for line in path.read_text().splitlines()]
        print(f"{victim.name}: {row(name, found)}", flush=True)
    return found


def standing(records: Iterable[SampleRecord]) -> set[int]:
    return {record.index for record in records if record.status == "robust"}


def passes(records: Iterable[SampleRecord], of: set[int]) -> float:
    """Forwards and backwards per image."""
    spent = [record.forwards + record.backwards for record in records if record.index in of]
    return sum(spent) / max(1, len(spent))


def figures(name: str, found: Mapping[str, Sequence[SampleRecord]]) -> dict[str, object]:
    """A variant against the whole, on one model."""
    records, left, before = found[name], standing(found[name]), standing(found["whole"])
    return {
        "survivors": len(left),
        "more": sorted(left - before),
        "fewer": sorted(before - left),
        "per survivor": round(passes(records, left), 1),
        "per clean-correct image": round(passes(records, {r.index for r in records if r.clean == r.label}), 1),
    }


def row(name: str, found: Mapping[str, Sequence[SampleRecord]]) -> str:
    shown = figures(name, found)
    differ = [f"{sign}{i}" for key, sign in (("more", "+"), ("fewer", "-")) for i in shown[key]]  # type: ignore[attr-defined]
    cells = (name, shown["survivors"], shown["per survivor"], shown["per clean-correct image"], " ".join(differ) or "-")
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["tiny-vit=128"], metavar="MODEL[+FAULT]=IMAGES")
    parser.add_argument("--out", required=True, type=Path, help="folder that keeps finished variants")
    parser.add_argument(
        "--only", nargs="+", default=[""], help="variants, by their first letters; the whole is always run"
    )
    parser.add_argument("--data", default="cifar10-demo")
    parser.add_argument("--threat", default="linf:8/255")
    parser.add_argument("--arch", help="of checkpoint files")
    parser.add_argument("--arch-kwargs", type=json.loads, default={})
    parser.add_argument("--normalize")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    threat = parse_threat(args.threat)
    assert isinstance(threat, LpBall)
    made = {n: a for n, a in variants(threat).items() if n == "whole" or n.startswith(tuple(args.only))}
    tables = {}
    for text in args.models:
        model, _, count = text.rpartition("=")
        victim = named(model, zoo.FileOptions(args.arch, args.arch_kwargs, normalize=args.normalize))
        tables[victim.name] = run(victim, made, threat, load(args.data, limit=int(count)), args.out / victim.name)
    for name, found in tables.items():
        right = sum(record.clean == record.label for record in found["whole"])
        print(f"\n{name}, {threat}, {len(found['whole'])} images of {args.data}, {right} of them right when clean\n")
        print("| variant | survivors | passes per survivor | per clean-correct image | images more (+) or fewer (-) |")
        print("| --- | --: | --: | --: | --- |")
        print("\n".join(row(variant, found) for variant in made))


if __name__ == "__main__":
    main()
