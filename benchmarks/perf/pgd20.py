"""PGD-20 with its verdict against torchattacks' PGD plus a forward, on the undefended embedded ViT.

    python benchmarks/perf/pgd20.py [--images 192] [--rounds 5] [--threads 1]

Both get the clean-correct images only, in batches of 64, eps 8/255, step 2/255, uniform start. Ours drops an image at
its first success and judges as it goes; theirs makes all steps and needs one more forward for the verdict. The ratio
depends on how soon images fall, so robust accuracy and the mean step of the first success are printed beside it.
"""

from __future__ import annotations

import torch
import torchattacks
from measure import arguments, conditions, interleaved, median
from torch import Tensor

from vitattack.attacks import attack_text
from vitattack.core.rng import SampleRng
from vitattack.data import load_data
from vitattack.models.victim import frozen
from vitattack.models.zoo.load import load_model
from vitattack.threats.lp import LpBall

EPS, BATCH = 8 / 255, 64


def main() -> None:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--model", default="tiny-vit-standard")
    parser.add_argument("--images", type=int, default=192)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    victim = load_model(args.model, torch.device("cpu")).victim
    data = load_data("cifar10-demo")
    x, y = data.read(data.rows)
    with frozen(victim), torch.no_grad():
        right = victim(x).argmax(1) == y
    x, y = x[right][: args.images], y[right][: args.images]
    batches = list(zip(x.split(BATCH), y.split(BATCH)))
    attack = attack_text.build("pgd", LpBall("linf", EPS))
    found: dict[str, list[Tensor]] = {}

    def ours() -> None:
        crafted = [attack(victim, a, b, rng=SampleRng(0, tuple(range(len(a))))) for a, b in batches]
        found["ours"] = [c.evidence["fooled"] for c in crafted]
        found["first"] = [c.evidence["first_fooled"] for c in crafted]

    def theirs() -> None:
        found["theirs"] = []
        for a, b in batches:
            x_adv = torchattacks.PGD(victim, eps=EPS, alpha=EPS / 4, steps=20)(a, b)
            with torch.no_grad():
                found["theirs"].append(victim(x_adv).argmax(1) != b)

    seconds = interleaved({"ours": ours, "theirs": theirs}, args.rounds)
    first = torch.cat(found["first"])
    print(conditions(args.threads))
    print(f"{args.model}, {len(y)} clean-correct images, batch {BATCH}, PGD-20, linf 8/255")
    for name in ("ours", "theirs"):
        robust = 1 - torch.cat(found[name]).float().mean()
        print(f"{name:>6}: {median(seconds[name]):.2f} s, robust accuracy of these images {float(robust):.1%}")
    ratios = sorted(b / a for a, b in zip(seconds["ours"], seconds["theirs"]))
    print(f"mean step of the first success {float(first[first >= 0].float().mean()):.2f}")
    print(f"ratio {median(ratios):.2f}x (rounds: {', '.join(f'{r:.2f}' for r in ratios)})")


if __name__ == "__main__":
    main()
