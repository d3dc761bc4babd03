"""Cost of a training step relative to a standard step, in one process, and of TRADES-10 relative to torchattacks' TPGD.

    python benchmarks/perf/train.py
    python benchmarks/perf/train.py --only fgsm,pgd --rounds 5

A step is crafting, loss, backward and AdamW, batch 32, float32. A TRADES-10 step is worth 27 forwards, of which we save one,
the clean logits of the attack, so that 1.04x is about the most there is to gain. The overhead of AAS-AT is one event per ten
epochs of 50,000 images.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from measure import arguments, conditions, interleaved, median, small32
from torch import Tensor, nn

from vitattack.models.victim import Victim
from vitattack.threats.base import parse_threat
from vitattack.train.data.batch import Batch
from vitattack.train.data.streams import ShuffledStream
from vitattack.train.hooks.base import RunState
from vitattack.train.loop.training_loop import TrainingLoop
from vitattack.train.recipe import Recipe
from vitattack.train.recipe_parts import build_parts

EPS, EPOCH = 8 / 255, 50_000
OBJECTIVES = {
    "standard": "standard",
    "fgsm": "fgsm",
    "pgd": "pgd_at(inner=pgd(steps=10, step=0.25))",
    "trades": "trades(beta=6, inner=pgd(steps=10, step=0.25, loss=kl_to, start=gauss))",
}


def loop_of(objective: str, stream: ShuffledStream, hooks: tuple[str, ...] = ()) -> TrainingLoop:
    recipe = Recipe("bench", "", objective=objective, hooks=hooks, epochs=10**6, batch_size=stream.batch_size)
    made, victim = build_parts(recipe), small32()
    for hook in made.hooks:
        hook.wrap(victim)
    run = RunState(victim, victim, made.optimiser(victim), EPS, 0, epochs=10**6, steps=stream.steps)
    run.objective = made.objective
    return TrainingLoop(run, made, stream)


def with_tpgd(batch: Batch) -> Callable[[], None]:
    """The same TRADES step written with torchattacks."""
    import torchattacks

    victim: Victim = small32().train()
    optimiser = torch.optim.AdamW(victim.parameters(), lr=1e-3, weight_decay=0.1)
    attack = torchattacks.TPGD(victim, eps=EPS, alpha=EPS / 4, steps=10)
    x, y = batch.x.float() / 255, batch.y

    def step() -> None:
        x_adv: Tensor = attack(x)
        victim.train()
        clean, attacked = victim(x), victim(x_adv)
        apart = F.kl_div(attacked.log_softmax(1), clean.log_softmax(1), reduction="batchmean", log_target=True)
        loss = F.cross_entropy(clean, y) + 6 * apart
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()

    return step


def event_of(stream: ShuffledStream) -> Callable[[], None]:
    """One search with default settings, from scales of one."""
    loop = loop_of("pgd_at", stream, ("aas_at(drop=1.0)",))
    run, (hook,) = loop.run, loop.parts.hooks
    run.batches = loop._first_batches
    fresh: dict[str, Tensor] = copy.deepcopy(run.plain.state_dict())
    run.epoch = 10

    def event() -> None:
        nn.Module.load_state_dict(run.plain, fresh)
        hook.before_epoch(run)

    return event


def main() -> None:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--only", default="standard,fgsm,pgd,trades,tpgd,aas")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    parse_threat("linf:8/255")
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (32 * 12, 3, 32, 32), generator=generator).to(torch.uint8)
    stream = ShuffledStream.of_tensors(x, torch.arange(len(x)) % 10, num_classes=10, batch_size=32, seed=0)
    batch = stream.batch(0, 0)
    wanted = args.only.split(",")
    ways: dict[str, Callable[[], object]] = {}
    for name in [name for name in OBJECTIVES if name in wanted]:
        loop = loop_of(OBJECTIVES[name], stream)
        ways[name] = lambda loop=loop: loop.step(batch)
    if "tpgd" in wanted:
        ways["tpgd"] = with_tpgd(batch)
    if "aas" in wanted:
        ways["aas"] = event_of(stream)
    seconds = interleaved(ways, args.rounds)
    found = {name: median(values) for name, values in seconds.items()}
    print(conditions(args.threads), f"small32, batch 32, {args.rounds} rounds", sep=", ")
    for name, value in found.items():
        more = f", {value / found['standard']:.2f} standard steps" if "standard" in found else ""
        print(f"{name:>9}: {value * 1000:.0f} ms{more}")
    if {"trades", "tpgd"} <= found.keys():
        rounds = [b / a for a, b in zip(seconds["trades"], seconds["tpgd"], strict=True)]
        print(f"TRADES-10, torchattacks over ours: {median(rounds):.3f}x")
    for name in ("pgd", "fgsm"):
        if {"aas", name} <= found.keys():
            share = found["aas"] / (10 * (EPOCH / 32) * found[name])
            print(f"AAS-AT over {name}: {share:.2%} of the time of ten epochs")


if __name__ == "__main__":
    main()
