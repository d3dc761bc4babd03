"""What an attack costs on a sample that nothing fools, known from its text; nothing heavy is imported.

The counts are those of `vitattack attacks list`, which makes the passes; a test compares the two for every attack.
They are upper bounds but for fab: it spends up to twice as much where points beyond the budget fool the model. What
is learned once per job on calibration images (scales of aas, the order of spatial) is not in them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from vitattack.bench.plan.outline import Outline, outline
from vitattack.threats.base import Threat, parse_threat
from vitattack.threats.spatial import Spatial


class Passes(NamedTuple):
    """Forwards and backwards for one image."""

    forwards: float = 0
    backwards: float = 0

    def plus(self, other: Passes) -> Passes:
        return Passes(self.forwards + other.forwards, self.backwards + other.backwards)

    def times(self, count: float) -> Passes:
        return Passes(self.forwards * count, self.backwards * count)


class Asked(NamedTuple):
    """How a model is asked: a view gives several answers to a question, and its verdict costs a forward more."""

    classes: int
    threat: Threat
    answers: int = 1
    verdict: int = 0

    @property
    def look(self) -> int:
        return self.answers + self.verdict


class Price(NamedTuple):
    """Passes through the victim, and through each model that candidates are crafted on."""

    victim: Passes
    sources: tuple[tuple[str, Passes], ...] = ()


# The clean forward before the attack, and the verdict after it.
AROUND = Passes(2, 0)


@cache
def price(attack: str, *, classes: int, threat: str) -> Price | None:
    """Of one image that no step fools, its clean forward and the verdict included; None where nobody knows."""
    how = Asked(classes, parse_threat(threat))
    read = outline(attack, how.threat)
    try:
        spent = passes(read, how)
    except _Unknown:
        return None
    return Price(AROUND.plus(spent), tuple(_sources(read, how)))


class _Unknown(Exception):
    """An attack of a plug-in, or of a package that counts as it likes."""


def passes(attack: Outline, how: Asked) -> Passes:
    """What the attack itself spends on the model it is asked about."""
    if attack.name not in _PRICES or not attack.known:
        raise _Unknown
    return _PRICES[attack.name](attack, how)


def _gradient(attack: Outline, how: Asked, steps: int) -> Passes:
    """The loop: T + 1 looks and T gradients; a look less for one that makes all its steps and returns the last unseen."""
    start, loss = attack.values.get("start"), attack.values.get("loss")
    before = start.values["steps"] if isinstance(start, Outline) and start.name == "odi" else 0
    clean = _needs_clean(loss) if isinstance(loss, Outline) else attack.values.get("anchor") == "clean"
    looks = steps if attack.values.get("stop") == "never" else steps + 1
    return Passes(how.answers * (before + clean) + how.look * looks, how.answers * (before + steps))


def _needs_clean(loss: Outline) -> bool:
    return loss.name in ("kl_to", "ce_targeted", "margin_targeted", "dlr_targeted") or (
        loss.name == "gama" and loss.values.get("anchor") == "clean"
    )


def _unseen(attack: Outline) -> bool:
    """Whether it hands candidates over without having looked: whoever goes on from them looks."""
    if attack.name in _SEVERAL:
        return False
    inner = attack.values.get("inner")
    return (
        _unseen(inner)
        if isinstance(inner, Outline)
        else attack.values.get("stop") == "never" and attack.name not in _NEAREST
    )


_SEVERAL = (
    "worst",
    "restarts",
    "md",
    "pma",
    "apgd_t",
    "mm",
    "targets",
    "autoattack",
    "auto",
)  # these look by themselves
_NEAREST = ("fab", "fab_t", "cw_l2")  # they look at every point, however long they go on


def _in_turn(parts: list[tuple[Outline, Passes]], how: Asked) -> Passes:
    """Attacks one after the other, each from the image."""
    total = Passes()
    for attack, spent in parts:
        total = total.plus(spent).plus(Passes(how.look * _unseen(attack)))
    return total


def _aimed(inner: Outline, spent: Passes, k: int, how: Asked) -> Passes:
    """A forward that ranks the classes, then a run towards each of k."""
    count = min(k, how.classes - 1)
    return _in_turn([(inner, spent)] * count, how).plus(Passes(how.answers))


def _steps(attack: Outline, how: Asked) -> Passes:
    return _gradient(attack, how, attack.values["steps"])


def _one_step(attack: Outline, how: Asked) -> Passes:
    return _gradient(attack, how, 1)


PGD_STEPS = {
    "default": 20,
    "madry": 10,
    "light2023": 10,
    "aas2024": 20,
    "bhojanapalli2021": 8,
    "trades": 20,
    "trades_train": 10,
}
MM = {"mm3": (3, 20), "mm9": (9, 20), "plus": (9, 100)}
CW_L2 = {"default": (5, 200), "paper": (9, 10_000)}


def _pgd(attack: Outline, how: Asked) -> Passes:
    return _gradient(attack, how, attack.given("steps", PGD_STEPS[attack.values["preset"]]))


def _decomposed(attack: Outline, how: Asked) -> Passes:
    return _two_runs(attack, how).plus(Passes(2 * how.look * (attack.values["stop"] == "never")))


def _two_runs(attack: Outline, how: Asked) -> Passes:
    return _gradient(attack, how, attack.values["steps"]).times(2)


def _restarts(attack: Outline, how: Asked) -> Passes:
    inner = attack.values["inner"]
    return _in_turn([(inner, passes(inner, how))], how).times(attack.values["n"])


def _worst(attack: Outline, how: Asked) -> Passes:
    return _in_turn([(part, passes(part, how)) for part in attack.values["attacks"]], how)


def _apgd_t(attack: Outline, how: Asked) -> Passes:
    single = Outline("apgd", {"stop": attack.values["stop"]})
    return _aimed(single, _gradient(single, how, attack.values["steps"]), attack.values["k"], how)


def _mm(attack: Outline, how: Asked) -> Passes:
    k, steps = MM[attack.values["preset"]]
    single = Outline("apgd")
    return _aimed(single, _gradient(single, how, attack.given("steps", steps)), attack.given("k", k), how)


def _targets(attack: Outline, how: Asked) -> Passes:
    inner = attack.values["inner"]
    plain = Outline(inner.name, {**inner.values, "loss": None})  # the target's loss takes the place of its own
    k = 1 if attack.values["which"] == "second" else attack.values["k"]
    return _aimed(inner, passes(plain, how), k, how)


def _fab(attack: Outline, how: Asked) -> Passes:
    """A look at the image; per run a linearisation per step and a look at the end."""
    values, wrong = attack.values, how.classes - 1
    goals, gradients = (1, wrong) if attack.name == "fab" else (min(values["targets"], wrong), 1)
    runs, steps = goals * values["restarts"], values["steps"]
    # a start is judged by nobody; every further point but the last is judged by the logits it is linearised with
    looks = steps + (steps - 1) * how.verdict
    return Passes(how.look + runs * (looks + how.look), runs * steps * gradients)


def _cw_l2(attack: Outline, how: Asked) -> Passes:
    searches, steps = CW_L2[attack.values["preset"]]
    searches, steps = attack.given("searches", searches), attack.given("steps", steps)
    return Passes(searches * steps * how.look, searches * (steps - 1))


def _square(attack: Outline, how: Asked) -> Passes:
    return Passes(how.look * (attack.values["queries"] + 1))


def _tries(attack: Outline, how: Asked) -> Passes:
    return Passes(how.look * attack.values["tries"])


def _spatial(attack: Outline, how: Asked) -> Passes:
    assert isinstance(how.threat, Spatial)
    shifts = attack.values["shifts"] ** 2 if how.threat.shift > 0 else 1
    return Passes(how.look * shifts * (attack.values["angles"] if how.threat.angle > 0 else 1))


def _spatial_random(attack: Outline, how: Asked) -> Passes:
    return Passes(how.look * attack.values["k"])


def _eot(attack: Outline, how: Asked) -> Passes:
    return passes(attack.values["inner"], how._replace(answers=attack.values["n"], verdict=1))


def _fp64(attack: Outline, how: Asked) -> Passes:
    return passes(attack.values["inner"], how._replace(verdict=1))


def _held(attack: Outline, how: Asked) -> Passes:
    return passes(attack.values["inner"], how)


def _scaled(attack: Outline, how: Asked) -> Passes:
    """The plain attack, then through views of the victim: with a report the first one for everybody, and the paper's."""
    inner, values = attack.values["inner"], attack.values
    plain = passes(inner, how)
    through_view = passes(inner, how._replace(verdict=1)).plus(Passes(1))
    total = plain.plus(Passes(1)).plus(through_view.times(_sets(attack)))
    if values.get("report", True) and values["mode"] == "surrogate":
        total = total.plus(plain).plus(Passes(3))
    return total


def _sets(attack: Outline) -> int:
    """How many sets of scales are used besides the plain model."""
    if attack.name == "given":
        return len(attack.values["scales"])
    if attack.name in ("aas", "random_scales"):
        usual = 5 if attack.values.get("preset") == "full" else 3
        return int(min(attack.values["keep"], attack.given("restarts", usual)))
    return 1


# AutoAttack's versions: stage, how often it is restarted.
VERSIONS = {
    "standard": ("apgd", "apgd_t", "fab_t", "square"),
    "plus": ("apgd5", "apgd5", "fab5", "square", "apgd_t", "fab_t"),
}


def _autoattack(attack: Outline, how: Asked) -> Passes:
    steps, queries = attack.values["steps"], attack.values["queries"]
    single = Outline("apgd")
    run = _gradient(single, how, steps)
    if attack.values["version"] == "rand":
        return _gradient(single, how._replace(answers=20, verdict=1), steps).times(2)
    stages = {
        "apgd": run,
        "apgd5": run.times(5),
        "apgd_t": _aimed(single, run, 9, how),
        "fab5": _fab(Outline("fab", {"steps": steps, "restarts": 5}), how),
        "fab_t": _fab(Outline("fab_t", {"steps": steps, "restarts": 1, "targets": 9}), how),
        "square": Passes(how.look * (queries + 1)),
    }
    total = Passes()
    for stage in VERSIONS[attack.values["version"]]:
        total = total.plus(stages[stage])
    return total


def _auto(attack: Outline, how: Asked) -> Passes:
    """Of a sample that stays among the nearest, on a model whose attention does not saturate; the others skip the round.

    What the assurance adds is at most 15 % of that, unless it escalates.
    """
    steps, k, long = (attack.values[name] for name in ("steps", "k", "long"))
    aimed = _aimed(Outline("pgd"), _gradient(Outline("pgd"), how, steps), k, how)
    longer = _gradient(Outline("apgd"), how, long)
    total, budget = Passes(2), attack.values.get("passes")
    if budget is None:
        return total.plus(aimed).plus(longer.times(2))

    def room(stage: Passes) -> bool:
        return bool(sum((*total, *stage)) + 5 <= budget)  # `AROUND` of auto.py: clean, claim, judge

    total = total.plus(aimed)
    while room(longer):
        total = total.plus(longer)
    return total


def _transfer(attack: Outline, how: Asked) -> Passes:
    """The victim only looks; see `_sources`."""
    return Passes(how.look)


def _sources(attack: Outline, how: Asked) -> list[tuple[str, Passes]]:
    """What candidates cost on the models they are crafted on."""
    if attack.name == "transfer":
        return [(attack.values["source"], passes(attack.values["inner"], how))]
    parts = [value for value in attack.values.values() if isinstance(value, Outline)]
    parts += [part for part in attack.values.get("attacks", ()) if isinstance(part, Outline)]
    found = [source for part in parts if part.name in _PRICES for source in _sources(part, how)]
    count = attack.values["n"] if attack.name == "restarts" else 1
    return [(source, spent.times(count)) for source, spent in found]


_PRICES: dict[str, Callable[[Outline, Asked], Passes]] = {
    **dict.fromkeys(("fgsm", "fgsm_rs"), _one_step),
    **dict.fromkeys(("mim", "cw", "dlr", "gama", "mifpe", "apgd", "apgd_ce", "apgd_dlr"), _steps),
    "pgd": _pgd,
    **dict.fromkeys(("pma", "md"), _decomposed),
    "restarts": _restarts,
    "worst": _worst,
    "apgd_t": _apgd_t,
    "mm": _mm,
    "targets": _targets,
    **dict.fromkeys(("fab", "fab_t"), _fab),
    "cw_l2": _cw_l2,
    "square": _square,
    **dict.fromkeys(("random", "gaussian"), _tries),
    "spatial": _spatial,
    "spatial_random": _spatial_random,
    "eot": _eot,
    "fp64": _fp64,
    "perceptual": _held,
    **dict.fromkeys(("aas", "aas_literal", "random_scales", "scale", "scale_search", "given"), _scaled),
    "autoattack": _autoattack,
    "auto": _auto,
    "transfer": _transfer,
}
