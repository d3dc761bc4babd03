"""Text to objects and back: `worst(pgd(steps=100), gama)`.

Parsed with `ast` and never evaluated: calls of registered names, literals, `+ - * /` on numbers, and `a+b` between
attacks as shell-friendly sugar for `a(b)`. What an option may hold is read off the annotations of the factory, so the
canonical text (defaults dropped, options in their declared order) is the same for equal attacks.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple, TypeVar

from vitattack.attacks.base import Attack
from vitattack.attacks.catalogue import ATTACKS
from vitattack.attacks.gradient.starts import STARTS, Start
from vitattack.attacks.gradient.steps import RULES, SCHEDULES, Schedule, StepRule
from vitattack.attacks.losses import LOSSES, AnyLoss
from vitattack.core.errors import UsageError
from vitattack.core.errors import WrongThreat as WrongThreat
from vitattack.core.registry import Registry
from vitattack.text.bind import ArgumentBinder, is_required
from vitattack.text.syntax import AttackSyntax, Call, Node, excerpt, node_label, node_text
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


class Named(NamedTuple):
    """An attack with its canonical text: equal for equal attacks, whatever the user typed."""

    syntax: AttackSyntax
    attack: Attack

    @property
    def text(self) -> str:
        return self.syntax.text


def parse(source: str | AttackSyntax, threat: Threat) -> Named:
    """The attack that a text names, against a threat."""
    attack, node = _Resolver(source, threat).resolve(Attack)
    return Named(AttackSyntax(node_text(node), node), attack)


def build(source: str | AttackSyntax, threat: Threat) -> Attack:
    """The attack that a text names, against a threat, without its canonical text."""
    return parse(source, threat).attack


def part(text: str, kind: Any, threat: Threat) -> tuple[Any, str]:
    """Any object whose kind is in `KINDS`, such as an objective of training, with its canonical text."""
    made, node = _Resolver(text, threat).resolve(kind)
    return made, node_text(node)


def check(text: str, threat: Threat | None = None) -> None:
    """Refuse a text whose names, options or kinds of values are wrong, or the threat unsuitable; nothing is built."""
    _Checker(text, threat).resolve(Attack)


def example(source: str | AttackSyntax) -> Named:
    """The attack that a text names, against the first kind of threat that suits it."""
    syntax = AttackSyntax.of(source)
    return for_any_threat(lambda threat: parse(syntax, threat))


def canonical(source: str | AttackSyntax) -> str:
    """The canonical text of an attack: equal for equal attacks, whatever the user typed."""
    return example(source).text


def for_any_threat(use: Callable[[Threat], T]) -> T:
    """What comes of the first kind of threat that suits the attack in question."""
    *most, last = examples()
    for example in most:
        with suppress(WrongThreat):
            return use(parse_threat(example))
    return use(parse_threat(last))


def held(canonical: AttackSyntax) -> AttackSyntax | None:
    """The attack held by a wrapper of one attack; None if there is none, or several."""
    inner = [node for node in canonical.root.args if isinstance(node, Call)] if isinstance(canonical.root, Call) else []
    return AttackSyntax(node_text(inner[0]), inner[0]) if len(inner) == 1 else None


def holding(name: str, inner: AttackSyntax, *leading: Node) -> AttackSyntax:
    """The canonical text of a wrapper around an attack, such as `restarts(5, pgd)`."""
    node = Call(name, (*leading, inner.root))
    return AttackSyntax(node_text(node), node)


def with_scales(canonical: AttackSyntax, scales: Node) -> AttackSyntax:
    """Replace every search for attention scales by given ones."""

    def replaced(node: Node) -> Node:
        if not isinstance(node, Call):
            return node
        args = tuple(replaced(argument) for argument in node.args)
        if node.name in ATTACKS and ATTACKS[node.name].needs_attention:
            mode = tuple(option for option in node.options if option[0] == "mode")
            return Call("given", tuple(each for each in args if isinstance(each, Call)), (("scales", scales), *mode))
        return Call(node.name, args, node.options)

    return AttackSyntax(canonical.text, replaced(canonical.root))


def is_threat(hint: Any) -> bool:
    """Whether a parameter is the threat, which comes from the job and never from the text."""
    return hint is Threat or (isinstance(hint, type) and issubclass(hint, threat_types()))


@cache
def threat_types() -> tuple[type, ...]:
    """The classes of all threats that can be named."""
    return tuple({type(parse_threat(example)) for example in examples()})


class Signature(NamedTuple):
    """What a factory can be told by a text, and whether it takes the threat and options that it does not list."""

    factory: Callable[..., Any]
    parameters: Mapping[str, inspect.Parameter]
    hints: Mapping[str, Any]
    takes_threat: bool
    unlisted: bool

    def make(self, chosen: Mapping[str, Any], threat: Threat) -> Any:
        """The object of these argument values."""
        several = [n for n, p in self.parameters.items() if p.kind is inspect.Parameter.VAR_POSITIONAL]
        rest = [value for n in several for value in chosen[n]]
        leading = (threat,) if self.takes_threat else ()
        return self.factory(*leading, *rest, **{n: v for n, v in chosen.items() if n not in several})


@cache
def signature_of(factory: Callable[..., Any]) -> Signature:
    hints = typing.get_type_hints(factory.__init__ if isinstance(factory, type) else factory)  # type: ignore[misc]
    every = inspect.signature(factory).parameters
    told = {n: p for n, p in every.items() if not is_threat(hints.get(n))}
    listed = {n: p for n, p in told.items() if p.kind is not inspect.Parameter.VAR_KEYWORD}
    return Signature(factory, listed, hints, len(told) < len(every), len(listed) < len(told))


class _Checker(ArgumentBinder):
    """Looks names up and checks options against annotations."""

    attack = Attack
    kinds = KINDS

    def __init__(self, source: str | AttackSyntax, threat: Threat | None) -> None:
        self._syntax = AttackSyntax.of(source)
        super().__init__(self._syntax.text)
        self.threat = threat

    def resolve(self, kind: Any) -> tuple[Any, Node]:
        """What the whole text names."""
        return self.named(self._syntax.root, kind)

    def example(self, name: str) -> str:
        return ATTACKS[name].quick if name in ATTACKS else f"{name}(...)"

    def named(self, node: Node, kind: Any) -> tuple[Any, Node]:
        call, signature = self._signature(node, kind)
        self.bind(call, signature.parameters, signature.hints, signature.unlisted)
        return None, call

    def _signature(self, node: Node, kind: Any) -> tuple[Call, Signature]:
        if not isinstance(node, Call):
            what = "an attack" if kind is Attack else "a name"
            raise UsageError(f"'{excerpt(self.text)}': {node_label(node)} stands where {what} belongs")
        entry = KINDS[kind][node.name]
        if kind is Attack and self.threat is not None and self.threat.kind not in entry.kinds:
            fits = " or ".join(examples(entry.kinds))
            raise WrongThreat(f"{node.name} is not defined for {self.threat.kind} threats: use --threat {fits}")
        return node, signature_of(entry.factory if kind is Attack else entry)


class _Resolver(_Checker):
    """Builds what the names stand for, and gives each object with its canonical text."""

    threat: Threat

    def __init__(self, source: str | AttackSyntax, threat: Threat) -> None:
        super().__init__(source, threat)

    def named(self, node: Node, kind: Any) -> tuple[Any, Node]:
        call, signature = self._signature(node, kind)
        values, nodes = self.bind(call, signature.parameters, signature.hints, signature.unlisted)
        kinds = KINDS[Attack][call.name].threats if kind is Attack else None
        args, options = _listed(signature, [parse_threat(example) for example in examples(kinds)], values, nodes)
        return signature.make(values, self.threat), Call(call.name, args, options)


def _listed(
    signature: Signature, threats: Sequence[Threat], values: Mapping[str, Any], nodes: Mapping[str, Node]
) -> tuple[tuple[Node, ...], tuple[tuple[str, Node], ...]]:
    """The plain arguments, and the options that matter: without the others the same object comes out under any threat."""
    parameters, kept = signature.parameters, dict(values)
    for name in reversed(list(values)):
        if name in parameters and not is_required(parameters[name]):
            shorter = {n: v for n, v in kept.items() if n != name}
            with suppress(UsageError):  # options may need each other
                if all(signature.make(shorter, threat) == signature.make(kept, threat) for threat in threats):
                    kept = shorter
    plain = [
        n
        for n, p in parameters.items()
        if n in kept and is_required(p) and p.kind is not inspect.Parameter.KEYWORD_ONLY
    ]
    args: list[Node] = []
    for name in plain:
        node = nodes[name]
        several = parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
        args += node if several and isinstance(node, tuple) else (node,)
    return tuple(args), tuple((name, nodes[name]) for name in kept if name not in plain)
