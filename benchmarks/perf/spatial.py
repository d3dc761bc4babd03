"""The spatial grid against foolbox's SpatialAttack and ART's SpatialTransformation, and against a plain loop.

    python benchmarks/perf/spatial.py [--images 16] [--rounds 3] [--threads 1] [--full]

ViT-Tiny at 224 px on 16 of the embedded photographs, enlarged; random weights, which see one class everywhere until
their mean logits are taken off the biases: 0.6 of them, with which about half of the images fall (1.0: nearly all, 0.0:
none); labels are its own predictions. All sides try 3 x 3 shifts in [-16, 16] px with 5 rotations in [-30, 30] degrees.
What survivors-only saves depends on how many images fall, so that stands beside the ratios, and so does "ours,
everything": everybody through the whole grid, with nobody dropped. foolbox counts a pixel as 2/224 of the image (ours is
2/223), and ART looks for one transform that fools most images, not for the worst of each: of ART only the time counts.
--full times ours alone on all 2,511 as well. foolbox comes with `make test`; for ART, which must not meet our pins:

    python -m venv art && art/bin/pip install -e . foolbox adversarial-robustness-toolbox cloudpickle
    art/bin/python benchmarks/perf/spatial.py
"""

from __future__ import annotations

from collections.abc import Callable

import foolbox
import torch
import torch.nn.functional as F
from measure import arguments, conditions, interleaved, median, tiny224
from torch import Tensor

from vitattack.attacks import attack_text
from vitattack.core.rng import SampleRng
from vitattack.data import load_data
from vitattack.models.victim import Victim, frozen
from vitattack.threats.spatial import Spatial, transform, transforms

SHIFTS, ANGLES = 3, 5
WHOLE = 2511
CENTRED = 0.6
THREAT = Spatial(16.0, 30.0)


def workload(count: int) -> tuple[Victim, Tensor, Tensor]:
    data = load_data("cifar10-demo")
    images, _ = data.read(data.rows[: count + 64])
    x = F.interpolate(images, size=224, mode="bilinear")
    victim = tiny224()
    with torch.no_grad():
        victim.model.head.bias -= CENTRED * victim(x[count:]).mean(0)  # type: ignore[union-attr, operator]
        return victim, x[:count], victim(x[:count]).argmax(1)


def brute_force(victim: Victim, x: Tensor, y: Tensor) -> Tensor:
    """Who is fooled by any point of the grid: every transform on everybody, one after the other."""
    fooled = torch.zeros(len(x), dtype=torch.bool)
    with frozen(victim), torch.no_grad():
        for tx in torch.linspace(-16, 16, SHIFTS):
            for ty in torch.linspace(-16, 16, SHIFTS):
                for angle in torch.linspace(-30, 30, ANGLES):
                    moved = transform(x, *(value.expand(len(x)) for value in (tx, ty, angle)))
                    fooled |= victim(moved).argmax(1) != y
    return fooled


def ours(victim: Victim, x: Tensor, y: Tensor, text: str) -> dict[str, Tensor]:
    crafted = attack_text.build(text, THREAT)(victim, x, y, rng=SampleRng(0, tuple(range(len(x)))))
    return dict(crafted.evidence)


def by_foolbox(victim: Victim, x: Tensor, y: Tensor) -> Tensor:
    model = foolbox.PyTorchModel(victim, bounds=(0, 1), device="cpu")
    attack = foolbox.attacks.SpatialAttack(16, 30, SHIFTS, ANGLES)
    with frozen(victim), torch.no_grad():
        fooled: Tensor = attack(model, x, foolbox.criteria.Misclassification(y))[2]
    return fooled


def art_or_none(victim: Victim) -> Callable[[Tensor], float] | None:
    try:
        from art.attacks.evasion import SpatialTransformation
        from art.estimators.classification import PyTorchClassifier
    except ImportError:
        return None
    classifier = PyTorchClassifier(
        victim, loss=torch.nn.CrossEntropyLoss(), input_shape=(3, 224, 224), nb_classes=1000, clip_values=(0, 1),
        device_type="cpu",
    )  # fmt: skip

    def run(x: Tensor) -> float:
        """The share of images that one and the same transform fools."""
        attack = SpatialTransformation(
            classifier,
            max_translation=100 * 16 / 224,
            num_translations=SHIFTS,
            max_rotation=30.0,
            num_rotations=ANGLES,
            verbose=False,
        )
        with frozen(victim):
            attack.generate(x.numpy())
        return float(attack.fooling_rate)

    return run


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--full", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    victim, x, y = workload(args.images)
    art = art_or_none(victim)
    grid = f"spatial(shifts={SHIFTS}, angles={ANGLES}, report=False, calibration=0)"
    count = SHIFTS * SHIFTS * ANGLES
    found: dict[str, object] = {}

    def forwards() -> None:
        with frozen(victim), torch.no_grad():
            victim(x)

    def resample() -> None:
        transforms(x, torch.tensor([5.0]), torch.tensor([-5.0]), torch.tensor([11.0]))

    ways: dict[str, Callable[[], object]] = {
        "one forward": forwards,
        "one transform": resample,
        "brute force": lambda: found.update(brute=brute_force(victim, x, y)),
        "ours": lambda: found.update(ours=ours(victim, x, y, grid)),
        "ours, everything": lambda: ours(victim, x, y, f"spatial(shifts={SHIFTS}, angles={ANGLES}, full_grid=True)"),
        "foolbox": lambda: found.update(foolbox=by_foolbox(victim, x, y)),
    }
    if art is not None:
        ways["ART"] = lambda: found.update(art=art(x))
    seconds = interleaved(ways, args.rounds)
    evidence, brute, foolbox_says = found["ours"], found["brute"], found["foolbox"]
    assert isinstance(evidence, dict) and isinstance(brute, Tensor) and isinstance(foolbox_says, Tensor)
    print(conditions(args.threads))
    forward = median(seconds["one forward"]) / len(x)
    resampling = median(seconds["one transform"]) / len(x) / forward
    fallen = [int(verdicts.sum()) for verdicts in (brute, evidence["fooled"], foolbox_says)]
    print(
        f"ViT-Tiny 224 px, {len(x)} images of {len(y.unique())} predicted classes, grid {SHIFTS} x {SHIFTS} x {ANGLES}"
    )
    print(f"one forward F = {1e3 * forward:.1f} ms per image; resampling {resampling:.3f} F")
    print("fooled: {} by brute force, {} by ours, {} by foolbox".format(*fallen))
    print(f"verdicts identical to brute force: {torch.equal(evidence['fooled'], brute)}")
    print(f"ours: {float(evidence['forwards'].float().mean()):.1f} of {count} transforms per image")
    for name in ("brute force", "ours", "ours, everything", "foolbox", "ART"):
        if name not in seconds:
            print("ART is not installed: see the top of this file")
            continue
        taken = median(seconds[name])
        each = taken / len(x) / count
        ratios = sorted(b / a for a, b in zip(seconds["ours"], seconds[name]))
        whole = "" if name == "ours" else f", 2,511 by extrapolation {each * WHOLE:.0f} s per image"
        print(
            f"{name:>16}: {taken:.2f} s, {1e3 * each:.1f} ms per image and grid point ({each / forward:.2f} F){whole}, "
            f"{median(ratios):.2f}x ours (rounds: {', '.join(f'{r:.2f}' for r in ratios)})"
        )
    if args.full:
        whole_grid = interleaved({"ours": lambda: found.update(full=ours(victim, x, y, "spatial(calibration=0)"))}, 1)
        full = found["full"]
        assert isinstance(full, dict)
        print(
            f"ours on all 2,511, shifts and rotations alone included: {median(whole_grid['ours']) / len(x):.1f} s per image, "
            f"{int(full['fooled'].sum())} of {len(x)} fooled, {float(full['forwards'].float().mean()):.0f} forwards per image"
        )


if __name__ == "__main__":
    main()
