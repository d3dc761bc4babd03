"""Ablation of `auto`: survivors and cost with each stage removed, shortened or joined by another.

    python benchmarks/auto_ablation.py --out runs/ablation --models tiny-vit=128 tiny-vit-saturated=128 tiny-vit+logits=128
    python benchmarks/auto_ablation.py --out runs/ablation --models FILE.safetensors=500 --arch ARCH --normalize cifar10

A model is a text as in `vitattack eval` with a number of images of --data. `+FAULT` masks its gradients: logits x 1e3,
attention scores x 1e3, or a quantiser in front whose gradient is zero. --only selects variants by their first letters.
Stages draw the same noise in every variant, so that stages shared between variants run once; sums over different batches
may still differ in the last bit. Finished variants are kept in --out: give a new folder after a change of the code.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from auto_variants import variants
from masked_gradients import load_masked
from torch import Tensor

from vitattack.attacks.auto.attack import Auto
from vitattack.attacks.auto.auto_stage import AutoStage
from vitattack.attacks.base import Attack, Crafted, Wrapper, blank_search
from vitattack.core.rng import SampleRng
from vitattack.data import DataSet, load_data
from vitattack.evaluation.judge import CleanAnswers, clean_answers, judge
from vitattack.models.base import Attackable
from vitattack.models.victim import Victim, model_digest
from vitattack.models.zoo.file_options import FileOptions
from vitattack.records.record import SampleRecord
from vitattack.records.stats import mean_passes
from vitattack.threats.base import Threat, parse_threat
from vitattack.threats.lp import LpBall

Kept = dict[tuple[str, float, str, int], tuple[Tensor, dict[str, Tensor]]]


@dataclass(frozen=True)
class Remembered(Wrapper):
    """An attack memoised per sample, with blank evidence for `auto` to read where the attack gives none."""

    inner: Attack
    scale: float
    kept: Kept = field(repr=False)

    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
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


def attacked(victim: Victim, attack: Auto, threat: Threat, data: DataSet, seed: int = 0) -> list[SampleRecord]:
    """Records as an evaluation makes them; passes are those that the attack reports, since memoised stages run once."""
    records = []
    for rows in data.cut(attack.traits.block):
        x, y = data.read(rows)
        rng = SampleRng(seed, tuple(rows))
        parts = [
            clean_answers(victim, x[part], y[part], rng[part])
            for part in torch.split(torch.arange(len(x)), attack.chunk)
        ]
        right = torch.cat([part.attacked for part in parts])
        clean = CleanAnswers(torch.cat([part.predictions for part in parts]), right)
        crafted = attack(victim, x[right], y[right], rng=rng[right])
        forwards, backwards = (crafted.evidence[name] for name in ("forwards", "backwards"))
        records += judge(victim, threat, rng, x, y, clean, crafted, forwards, backwards)
    return records


def remembering(attack: Auto, kept: Kept) -> Auto:
    def kept_in(stages: tuple[AutoStage, ...]) -> tuple[AutoStage, ...]:
        return tuple(s._replace(attack=Remembered(s.attack, s.scale, kept)) for s in stages)

    parts = {name: kept_in(getattr(attack, name)) for name in ("opening", "rounds", "hard")}
    ((detour,), (black_box,)) = kept_in((attack.detour,)), kept_in((attack.black_box,))
    return replace(attack, **parts, detour=detour, black_box=black_box)


def told(attack: Auto) -> str:
    """Its repr without addresses of functions, which change from process to process."""
    return re.sub(" at 0x[0-9a-f]+", "", repr(attack))


def run(
    victim: Victim, made: Mapping[str, Auto], threat: Threat, data: DataSet, out: Path, seed: int = 0
) -> dict[str, list[SampleRecord]]:
    """Records of every variant on one model, read from --out if they are there."""
    out.mkdir(parents=True, exist_ok=True)
    about, found = f"{model_digest(victim)} {data.digest()} {threat}" + f" {seed}" * (seed > 0), {}
    kept: Kept = {}
    for name, attack in made.items():
        path = out / f"{hashlib.sha256(f'{about} {told(attack)}'.encode()).hexdigest()[:16]}.jsonl"
        if not path.exists():
            records = attacked(victim, remembering(attack, kept), threat, data, seed)
            partial = path.with_suffix(".partial")
            partial.write_text("".join(record.line() + "\n" for record in records))
            partial.replace(path)
        found[name] = [SampleRecord.parse(line) for line in path.read_text().splitlines()]
        print(f"{victim.name}, {name}: {cell(figures(name, found))}", file=sys.stderr, flush=True)
    return found


def standing(records: Iterable[SampleRecord]) -> set[int]:
    return {record.index for record in records if record.status == "robust"}


def passes(records: Iterable[SampleRecord], of: set[int]) -> float:
    """Forwards and backwards per image."""
    spent = [record.forwards + record.backwards for record in records if record.index in of]
    return sum(spent) / max(1, len(spent))


def figures(name: str, found: Mapping[str, Sequence[SampleRecord]]) -> dict[str, Any]:
    """A variant compared with the whole attack on one model."""
    records, left, before = found[name], standing(found[name]), standing(found["whole"])
    return {
        "survivors": len(left),
        "more": sorted(left - before),
        "fewer": sorted(before - left),
        "per survivor": round(passes(records, left), 1),
        "per clean-correct image": round(sum(mean_passes(records)), 1),
    }


def cell(shown: Mapping[str, Any]) -> str:
    more, fewer = (f" {sign}{len(shown[key])}" * bool(shown[key]) for key, sign in (("more", "+"), ("fewer", "-")))
    return f"{shown['survivors']}{more}{fewer} / {shown['per survivor']:.0f} / {shown['per clean-correct image']:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["tiny-vit=128"], metavar="MODEL[+FAULT]=IMAGES")
    parser.add_argument("--out", required=True, type=Path, help="folder that keeps finished variants")
    parser.add_argument(
        "--only", nargs="+", default=[""], help="variants, by their first letters; the whole is always run"
    )
    parser.add_argument("--data", default="cifar10-demo")
    parser.add_argument("--threat", default="linf:8/255")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--arch", help="of checkpoint files")
    parser.add_argument("--arch-kwargs", type=json.loads, default={})
    parser.add_argument("--normalize")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    threat = parse_threat(args.threat)
    assert isinstance(threat, LpBall)
    made = {n: a for n, a in variants(threat).items() if n == "whole" or n.startswith(tuple(args.only))}
    tables = {}
    for text in args.models:
        model, _, count = text.rpartition("=")
        victim = load_masked(model, FileOptions(args.arch, args.arch_kwargs, normalize=args.normalize))
        tables[victim.name] = run(
            victim, made, threat, load_data(args.data, limit=int(count)), args.out / victim.name, args.seed
        )
    print(
        "survivors, with how many more (+) or fewer (-) than the whole / passes per survivor / per clean-correct image\n"
    )
    print(f"| variant | {' | '.join(tables)} |\n| --- |{' --: |' * len(tables)}")
    shown = {name: {model: figures(name, found) for model, found in tables.items()} for name in made}
    for name, cells in shown.items():
        print(f"| {name} | {' | '.join(map(cell, cells.values()))} |")
    for name, cells in shown.items():
        for model, differs in cells.items():
            for what in ("more", "fewer"):
                if differs[what]:
                    print(f"{name}, {model}: {what} survivors: {', '.join(map(str, differs[what]))}")
    if args.json:
        args.json.write_text(json.dumps(shown, indent=2) + "\n")


if __name__ == "__main__":
    main()
