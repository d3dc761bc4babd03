"""Parity of `autoattack` with the authors' package at full settings, image by image.

    python benchmarks/autoattack_parity.py --out runs/parity [--model tiny-vit] [--limit 128] [--threads 2]

Prints the survivors of both, each image on which they differ, the stages that images fell to, and the cost per sample.
Finished batches are stored in --out, and the same command resumes a run that was stopped. The two do not share random
starts (the package draws for a whole batch from one seed), so that single images may differ; vary --seed to see how much
of a difference is chance. For a smoke run, lower --steps and --queries. Single stages are compared as

    python benchmarks/autoattack_parity.py --out runs/parity --threat l1:12 --limit 64 --attacks \\
        'worst(restarts(5, apgd_ce), apgd_t(k=5))' "autoattack_ref(stages=('apgd-ce', 'apgd-t'))"
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import vitattack
from vitattack.evaluation.listener import EvaluationListener
from vitattack.records.job import Job
from vitattack.records.record import RecordListener, SampleRecord
from vitattack.records.result import Result


class Progress(EvaluationListener):
    """One line per stored batch, on standard error."""

    def job(self, job: Job, number: int, count: int) -> RecordListener:
        done = 0

        def watch(records: Sequence[SampleRecord], total: int) -> None:
            nonlocal done
            done += len(records)
            print(f"{job.attack}: {done}/{total}", file=sys.stderr, flush=True)

        return watch


def cost(result: Result, status: str) -> str:
    """Mean passes over the samples with a status."""
    records = [r for r in result.records if r.status == status]
    if not records:
        return "-"
    forwards, backwards = (sum(getattr(r, name) for r in records) / len(records) for name in ("forwards", "backwards"))
    return f"{forwards:,.0f} + {backwards:,.0f}"


def fell(result: Result) -> str:
    """Number of samples that each stage broke, in the order of the stages."""
    section = result.section("stages")
    return ", ".join(f"{name} {count}" for name, count in section.content.items()) if section else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="folder that keeps finished batches")
    parser.add_argument("--model", default="tiny-vit")
    parser.add_argument("--threat", default="linf:8/255")
    parser.add_argument("--data", default="cifar10-demo")
    parser.add_argument("--limit", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--queries", type=int, default=5000)
    parser.add_argument("--attacks", nargs=2, metavar=("OURS", "THEIRS"), help="other attacks than both in full")
    args = parser.parse_args()
    options = f"(steps={args.steps}, queries={args.queries})"
    evaluation = vitattack.evaluate(
        args.model,
        args.attacks or [f"{name}{options}" for name in ("autoattack", "autoattack_ref")],
        threat=args.threat,
        data=args.data,
        limit=args.limit,
        batch_size=args.batch_size,
        seed=args.seed,
        threads=args.threads,
        out=args.out,
        listener=Progress(),
    )
    ours, theirs = evaluation.results
    print(f"{args.model}, {args.threat}, {args.data}[:{args.limit}], batch {args.batch_size}, seed {args.seed}")
    print(f"{ours.n} images, {ours.clean.correct} of them right when clean\n")
    print("| attack | survivors | per robust sample | per fooled sample | seconds | fell to |")
    print("| --- | --: | --: | --: | --: | --- |")
    for result in (ours, theirs):
        shown = (result.job.attack, result.robust.correct, cost(result, "robust"), cost(result, "fooled"))
        print(f"| {' | '.join(map(str, shown))} | {result.seconds:,.0f} | {fell(result)} |")
    print("\nPasses are forwards + backwards, the clean forward and our verdicts included.")
    differ = [(a, b) for a, b in zip(ours.records, theirs.records) if (a.status == "fooled") != (b.status == "fooled")]
    print(f"\nimages with another verdict: {len(differ)}")
    for a, b in differ:
        stages = f"stage {a.evidence.get('stage')} against {b.evidence.get('stage')}"
        print(f"  image {a.index} (label {a.label}): ours {a.status}, theirs {b.status}, {stages}")
    for doubt in evaluation.doubts:
        print(f"doubt: {doubt}")


if __name__ == "__main__":
    main()
