"""Text to objects and back: `worst(pgd(steps=100), gama)`.

Parsed with `ast` and never evaluated: calls of registered names, literals, `+ - * /` on numbers, and `a+b` between
attacks as shell-friendly sugar for `a(b)`. What an option may hold is read off the annotations of the factory, so the
canonical text (defaults dropped, options in their declared order) is the same for equal attacks.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from vitattack.attacks.base import Attack
from vitattack.attacks.catalogue import ATTACKS
from vitattack.attacks.gradient.starts import STARTS, Start
from vitattack.attacks.gradient.steps import RULES, SCHEDULES, Schedule, StepRule
from vitattack.attacks.losses import LOSSES, AnyLoss
from vitattack.core.errors import UsageError
from vitattack.core.errors import WrongThreat as WrongThreat
from vitattack.core.registry import Registry
from vitattack.text.bind import Reader, is_required
from vitattack.text.syntax import Call, Node, parse, short, shown
from vitattack.threats.base import Threat, examples, parse_threat

T = TypeVar("T")

# What may stand where an option is annotated with one of these types.
KINDS: dict[Any, Registry[Any]] = {
    Attack: ATTACKS,
    AnyLoss: LOSSES,
    Start: STARTS,
    StepRule: RULES,
    Schedule: SCHEDULES,
}


def is_threat(hint: Any) -> bool:
    """Whether a parameter is the threat, which comes from the job and never from the text."""
    return hint is Threat or (isinstance(hint, type) and hasattr(hint, "allows"))


def _factory(kind: Any, name: str) -> Callable[..., Any]:
    entry = KINDS[kind][name]
    factory: Callable[..., Any] = entry.factory if kind is Attack else entry
    return factory


def build(text: str, threat: Threat) -> Attack:
    """The attack a text names, against a threat."""
    attack: Attack = _Resolver(text, threat).named(parse(text), Attack)[0]
    return attack


def part(text: str, kind: Any, threat: Threat) -> tuple[Any, str]:
    """Any object whose kind is in `KINDS`, such as an objective of training, with its canonical text."""
    return _Resolver(text, threat).named(parse(text), kind)


def canonical(attack: str | Node) -> str:
    """The one text of an attack: equal for equal attacks, whatever the user typed."""
    text, node = (attack, parse(attack)) if isinstance(attack, str) else ("attack", attack)
    return for_any_threat(lambda threat: _Resolver(text, threat).named(node, Attack)[1])


def for_any_threat(use: Callable[[Threat], T]) -> T:
    """What comes of the first kind of threat that suits the attack in question."""
    *most, last = examples()
    for example in most:
        with suppress(WrongThreat):
            return use(parse_threat(example))
    return use(parse_threat(last))


def held(text: str) -> str | None:
    """The attack that a wrapper of one attack holds, as canonical text; None where there is none or several."""
    node = parse(canonical(text))
    inner = [part for part in node.args if isinstance(part, Call)] if isinstance(node, Call) else []
    return canonical(inner[0]) if len(inner) == 1 else None


def bare(text: str) -> Node:
    """The tree of an attack without the wrapper that only measures what comes out."""
    node = parse(text)
    return node.args[0] if isinstance(node, Call) and node.name == "perceptual" and node.args else node


def with_scales(text: str, scales: Node) -> str:
    """The attack with given attention scales in place of every search for some."""

    def replaced(node: Node) -> Node:
        if not isinstance(node, Call):
            return node
        args = tuple(replaced(part) for part in node.args)
        if node.name in ATTACKS and ATTACKS[node.name].needs_attention:
            mode = tuple(option for option in node.options if option[0] == "mode")
            return Call("given", tuple(part for part in args if isinstance(part, Call)), (("scales", scales), *mode))
        return Call(node.name, args, node.options)

    return canonical(replaced(parse(canonical(text))))


def names(text: str, name: str) -> bool:
    """Whether an attack is, or holds, the one of this name."""

    def within(node: Node) -> bool:
        return isinstance(node, Call) and (node.name == name or any(map(within, node.args)))

    return within(parse(canonical(text)))


def with_options(text: str, name: str, options: Mapping[str, Node]) -> str:
    """The attack with these options wherever it names `name`; as it was where it does not."""

    def given(node: Node) -> Node:
        if not isinstance(node, Call):
            return node
        found = Call(node.name, tuple(map(given, node.args)), node.options)
        return replace(found, options=tuple({**dict(node.options), **options}.items())) if node.name == name else found

    return canonical(given(parse(canonical(text))))


@cache
def _signature(factory: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, Any]]:
    target = factory.__init__ if isinstance(factory, type) else factory  # type: ignore[misc]
    hints = typing.get_type_hints(target)
    return inspect.signature(factory), hints


class _Resolver(Reader):
    """Looks names up, checks options against annotations, and gives each object with its canonical text."""

    attack = Attack
    kinds = KINDS

    def __init__(self, text: str, threat: Threat) -> None:
        super().__init__(text)
        self.threat = threat

    def example(self, name: str) -> str:
        return ATTACKS[name].quick if name in ATTACKS else f"{name}(...)"

    def named(self, node: Node, kind: Any) -> tuple[Any, str]:
        if not isinstance(node, Call):
            what = "an attack" if kind is Attack else "a name"
            raise UsageError(f"'{short(self.text)}': {shown(node)} stands where {what} belongs")
        kinds = KINDS[Attack][node.name].threats if kind is Attack else None
        if kinds is not None and self.threat.kind not in kinds:
            fits = " or ".join(examples(kinds))
            raise WrongThreat(f"{node.name} is not defined for {self.threat.kind} threats: use --threat {fits}")
        factory = _factory(kind, node.name)
        signature, hints = _signature(factory)
        plain = {n: p for n, p in signature.parameters.items() if not is_threat(hints.get(n))}
        parameters = {n: p for n, p in plain.items() if p.kind is not inspect.Parameter.VAR_KEYWORD}
        values, texts = self.bind(node, parameters, hints, unlisted=len(parameters) < len(plain))

        def make(chosen: dict[str, Any], threat: Threat) -> Any:
            several = [n for n, p in parameters.items() if p.kind is inspect.Parameter.VAR_POSITIONAL]
            rest = [value for n in several for value in chosen[n]]
            leading = (threat,) if len(plain) < len(signature.parameters) else ()
            return factory(*leading, *rest, **{n: v for n, v in chosen.items() if n not in several})

        tried = [parse_threat(example) for example in examples(kinds)]
        listed = self._listed(make, tried, parameters, values, texts)
        return make(values, self.threat), f"{node.name}({', '.join(listed)})" if listed else node.name

    @staticmethod
    def _listed(
        make: Callable[[dict[str, Any], Threat], Any],
        threats: list[Threat],
        parameters: dict[str, inspect.Parameter],
        values: dict[str, Any],
        texts: dict[str, str],
    ) -> list[str]:
        """The arguments that matter: an option without which the same object comes out, under any threat, is dropped."""
        kept = dict(values)
        for name in reversed(values):
            if name in parameters and not is_required(parameters[name]):
                shorter = {n: v for n, v in kept.items() if n != name}
                with suppress(UsageError):  # options may need each other
                    if all(make(shorter, threat) == make(kept, threat) for threat in threats):
                        kept = shorter
        plain = [
            n
            for n, p in parameters.items()
            if n in kept and is_required(p) and p.kind is not inspect.Parameter.KEYWORD_ONLY
        ]
        return [texts[n] for n in plain if texts[n]] + [f"{n}={texts[n]}" for n in kept if n not in plain]
