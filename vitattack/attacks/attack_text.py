"""Attack texts to attacks and back: `worst(pgd(steps=100), gama)`.

Texts are parsed with `ast` and never evaluated: calls of registered names, literals, `+ - * /` on numbers, and `a+b` as
shell-friendly sugar for `a(b)`. Types of options come from the annotations of the factory. The canonical text, with
defaults dropped and options in declared order, is the same for equal attacks.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple, TypeVar

from vitattack.attacks.base import Attack
from vitattack.attacks.catalogue import ATTACKS, BUILT_IN, attacks_made_for
from vitattack.attacks.gradient.starts import STARTS, Start
from vitattack.attacks.gradient.steps import RULES, SCHEDULES, Schedule, StepRule
from vitattack.attacks.losses.base import LOSSES, AnyLoss
from vitattack.attacks.patch.places import PLACES, Place
from vitattack.core.errors import UsageError
from vitattack.core.errors import WrongThreat as WrongThreat
from vitattack.core.registry import Registry
from vitattack.text.bind import ArgumentBinder, is_required
from vitattack.text.syntax import AttackSyntax, Call, Node, excerpt, node_label, node_text
from vitattack.threats.base import Threat, examples, parse_threat

T = TypeVar("T")

# Registries whose names are allowed where an option is annotated with one of these types.
KINDS: dict[Any, Registry[Any]] = {
    Attack: ATTACKS,
    AnyLoss: LOSSES,
    Start: STARTS,
    StepRule: RULES,
    Schedule: SCHEDULES,
    Place: PLACES,
}


class NamedAttack(NamedTuple):
    """An attack with its canonical text, which is the same for equal attacks, whatever the user typed."""

    syntax: AttackSyntax
    attack: Attack

    @property
    def text(self) -> str:
        return self.syntax.text


def parse(source: str | AttackSyntax, threat: Threat) -> NamedAttack:
    """Build the attack of a text for a threat, with its canonical text."""
    attack, node = _Resolver(source, threat).resolve(Attack)
    return NamedAttack(AttackSyntax(node_text(node), node), attack)


def build(source: str | AttackSyntax, threat: Threat) -> Attack:
    """Build the attack of a text for a threat."""
    return parse(source, threat).attack


def parse_part(text: str, kind: Any, threat: Threat) -> tuple[Any, str]:
    """Build an object of any kind in `KINDS`, such as a training objective, with its canonical text."""
    part, node = _Resolver(text, threat).resolve(kind)
    return part, node_text(node)


def check_attack_text(text: str, threat: Threat | None = None) -> None:
    """Refuse unknown names and options, values of the wrong type and an unsuitable threat, without building anything."""
    _Checker(text, threat).resolve(Attack)


def example_attack(source: str | AttackSyntax) -> NamedAttack:
    """Build the attack of a text for the first example threat that it is defined for."""
    syntax = AttackSyntax.of(source)
    return for_any_threat(lambda threat: parse(syntax, threat))


def canonical(source: str | AttackSyntax) -> str:
    """Canonical text of an attack: the same for equal attacks, whatever the user typed."""
    return example_attack(source).text


def for_any_threat(use: Callable[[Threat], T]) -> T:
    """Call `use` with the first example threat that it does not refuse."""
    *most, last = examples()
    for example in most:
        with suppress(WrongThreat):
            return use(parse_threat(example))
    return use(parse_threat(last))


def inner_syntax(canonical: AttackSyntax) -> AttackSyntax | None:
    """Syntax of the inner attack; None for an attack with no or several inner attacks."""
    inner = [node for node in canonical.root.args if isinstance(node, Call)] if isinstance(canonical.root, Call) else []
    return AttackSyntax(node_text(inner[0]), inner[0]) if len(inner) == 1 else None


def wrapped_in(name: str, inner: AttackSyntax, *leading: Node) -> AttackSyntax:
    """Syntax of a wrapper around an attack, such as `restarts(5, pgd)`."""
    node = Call(name, (*leading, inner.root))
    return AttackSyntax(node_text(node), node)


def with_scales(canonical: AttackSyntax, scales: Node) -> AttackSyntax:
    """Replace every search for attention scales by the given scales."""

    def replaced(node: Node) -> Node:
        if not isinstance(node, Call):
            return node
        args = tuple(replaced(argument) for argument in node.args)
        if node.name in BUILT_IN["aas.variants"] and ATTACKS[node.name].needs_attention:
            mode = tuple(option for option in node.options if option[0] == "mode")
            return Call("given", tuple(each for each in args if isinstance(each, Call)), (("scales", scales), *mode))
        return Call(node.name, args, node.options)

    return AttackSyntax(canonical.text, replaced(canonical.root))


def is_threat(hint: Any) -> bool:
    """Whether a parameter takes the threat, which comes from the job and never from the text."""
    return hint is Threat or (isinstance(hint, type) and issubclass(hint, threat_types()))


@cache
def threat_types() -> tuple[type, ...]:
    """Classes of all registered threats."""
    return tuple({type(parse_threat(example)) for example in examples()})


class FactorySignature(NamedTuple):
    """Parameters of a factory that a text can set, and whether it takes the threat and arbitrary keyword options."""

    factory: Callable[..., Any]
    parameters: Mapping[str, inspect.Parameter]
    hints: Mapping[str, Any]
    takes_threat: bool
    unlisted: bool

    def make(self, chosen: Mapping[str, Any], threat: Threat) -> Any:
        """Call the factory with these argument values."""
        variadic = [n for n, p in self.parameters.items() if p.kind is inspect.Parameter.VAR_POSITIONAL]
        positional = [value for n in variadic for value in chosen[n]]
        leading = (threat,) if self.takes_threat else ()
        return self.factory(*leading, *positional, **{n: v for n, v in chosen.items() if n not in variadic})


@cache
def signature_of(factory: Callable[..., Any]) -> FactorySignature:
    hints = typing.get_type_hints(factory.__init__ if isinstance(factory, type) else factory)  # type: ignore[misc]
    parameters = inspect.signature(factory).parameters
    settable = {n: p for n, p in parameters.items() if not is_threat(hints.get(n))}
    listed = {n: p for n, p in settable.items() if p.kind is not inspect.Parameter.VAR_KEYWORD}
    return FactorySignature(factory, listed, hints, len(settable) < len(parameters), len(listed) < len(settable))


class _Checker(ArgumentBinder):
    """Looks up names and checks options against annotations."""

    attack = Attack
    kinds = KINDS

    def __init__(self, source: str | AttackSyntax, threat: Threat | None) -> None:
        self._syntax = AttackSyntax.of(source)
        super().__init__(self._syntax.text)
        self.threat = threat

    def resolve(self, kind: Any) -> tuple[Any, Node]:
        """Resolve the whole text as an object of a kind."""
        return self.named(self._syntax.root, kind)

    def example(self, name: str) -> str:
        return ATTACKS[name].quick if name in ATTACKS else f"{name}(...)"

    def named(self, node: Node, kind: Any) -> tuple[Any, Node]:
        call, signature = self._signature(node, kind)
        self.bind(call, signature.parameters, signature.hints, signature.unlisted)
        return None, call

    def _signature(self, node: Node, kind: Any) -> tuple[Call, FactorySignature]:
        if not isinstance(node, Call):
            what = "an attack" if kind is Attack else "a name"
            raise UsageError(f"'{excerpt(self.text)}': {node_label(node)} stands where {what} belongs")
        entry = KINDS[kind][node.name]
        if kind is Attack and self.threat is not None and self.threat.kind not in entry.kinds:
            fits = " or ".join(examples(entry.kinds))
            others = attacks_made_for(self.threat.kind)
            use = f", or {' or '.join(others)}" if others else ""
            raise WrongThreat(f"{node.name} is not defined for {self.threat.kind} threats: use --threat {fits}{use}")
        return node, signature_of(entry.factory if kind is Attack else entry)


class _Resolver(_Checker):
    """Builds objects from their texts, each with its canonical syntax."""

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
    signature: FactorySignature, threats: Sequence[Threat], values: Mapping[str, Any], nodes: Mapping[str, Node]
) -> tuple[tuple[Node, ...], tuple[tuple[str, Node], ...]]:
    """Canonical arguments: positional ones, and options without which the object differs under some threat."""
    parameters, needed = signature.parameters, dict(values)
    for name in reversed(list(values)):
        if name in parameters and not is_required(parameters[name]):
            shorter = {n: v for n, v in needed.items() if n != name}
            with suppress(UsageError):  # options may need each other
                if all(signature.make(shorter, threat) == signature.make(needed, threat) for threat in threats):
                    needed = shorter
    positional = [
        n
        for n, p in parameters.items()
        if n in needed and is_required(p) and p.kind is not inspect.Parameter.KEYWORD_ONLY
    ]
    args: list[Node] = []
    for name in positional:
        node = nodes[name]
        variadic = parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
        args += node if variadic and isinstance(node, tuple) else (node,)
    return tuple(args), tuple((name, nodes[name]) for name in needed if name not in positional)
