"""Binding of call arguments to a signature, checked against annotations; what names mean is left to subclasses."""

from __future__ import annotations

import inspect
import math
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any, Literal

from vitattack.core.errors import UsageError
from vitattack.core.registry import did_you_mean
from vitattack.text.syntax import Call, Node, excerpt, node_label

LARGEST = 10**9
BUDGETS = ("eps", "ball", "threat")
# Presets once named after private codes of papers.
FORMER_CHOICES = {"s001": "light2023", "s002": "aas2024", "s003": "bhojanapalli2021"}


class ArgumentBinder:
    """Bind the calls of one text; a subclass says which annotations take names, and what a name stands for."""

    attack: Any  # the annotation of an attack
    kinds: Collection[Any]  # the annotations of whatever has a name, attacks among them

    def __init__(self, text: str) -> None:
        self.text = text

    def named(self, node: Node, kind: Any) -> tuple[Any, Node]:
        """Look up a name with its arguments: the object, and its canonical node."""
        raise NotImplementedError

    def example(self, name: str) -> str:
        """An example of how an attack is written."""
        raise NotImplementedError

    def bind(
        self, node: Call, parameters: Mapping[str, inspect.Parameter], hints: Mapping[str, Any], unlisted: bool
    ) -> tuple[dict[str, Any], dict[str, Node]]:
        """Argument values and their canonical nodes, by parameter name in declared order; then `unlisted` ones, sorted.

        The node of a variadic parameter is the tuple of its values.
        """
        given: dict[str, Node] = {}
        many: list[Node] = []
        flexible = [n for n, p in parameters.items() if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        rest = next((n for n, p in parameters.items() if p.kind is inspect.Parameter.VAR_POSITIONAL), None)
        # `a+b` hands an attack over as the last argument; it belongs to the parameter that wants one.
        for position, value in enumerate(node.args):
            free = [n for n in flexible if n not in given]
            if free and rest is None:
                wants = [n for n in free if hints.get(n) is self.attack] if isinstance(value, Call) else []
                given[(wants or free)[0]] = value
            elif rest is not None:
                many.append(value)
            else:
                options = ", ".join(n for n in parameters if n not in given) or "no options"
                raise UsageError(
                    f"'{excerpt(self.text)}': {node.name} takes {len(flexible)} plain arguments, not {position + 1}; "
                    f"name the option ({options})"
                )
        for name, value in node.options:
            if name == rest or name not in parameters:
                if name in BUDGETS:
                    raise UsageError(f"'{excerpt(self.text)}': the budget is the threat's: use --threat linf:8/255")
                if unlisted and name not in given:
                    given[name] = value
                    continue
                raise UsageError(f"'{excerpt(self.text)}': " + did_you_mean(f"option of {node.name}", name, parameters))
            if name in given:
                raise UsageError(f"'{excerpt(self.text)}': {name} is given twice")
            given[name] = value
        values: dict[str, Any] = {}
        nodes: dict[str, Node] = {}
        for name, parameter in parameters.items():
            label = f"{node.name}({name}=...)"
            if name == rest:
                pairs = [self.value(v, hints[name], label) for v in many]
                values[name], nodes[name] = tuple(v for v, _ in pairs), tuple(n for _, n in pairs)
            elif name in given:
                values[name], nodes[name] = self.value(given[name], hints[name], label)
            elif is_required(parameter):
                raise UsageError(f"'{excerpt(self.text)}': {node.name} needs {name}, as in {self.example(node.name)}")
        for name in sorted(given.keys() - parameters.keys()):
            values[name], nodes[name] = self._literal(given[name], f"{node.name}({name}=...)")
        return values, nodes

    def _literal(self, node: Node, label: str) -> tuple[Any, Node]:
        """A value without annotation: a boolean, a number, or a word with or without quotes."""
        word = node.name if isinstance(node, Call) and not (node.args or node.options) else node
        whole = isinstance(word, int) or (isinstance(word, float) and word.is_integer())
        kind = str if isinstance(word, str) else bool if isinstance(word, bool) else int if whole else float
        return self.value(word, kind, label)

    def value(self, node: Node, hint: Any, label: str) -> tuple[Any, Node]:
        """The value of an option with this annotation, and its canonical node."""
        if hint in self.kinds:
            if hint is self.attack and isinstance(node, Call) and node.name == "perceptual":
                raise UsageError(
                    f"'{excerpt(self.text)}': perceptual measures what comes out at the end: write it outermost, "
                    "as in perceptual(worst(pgd, gama))"
                )
            return self.named(node, hint)
        origin = typing.get_origin(hint)
        choices = typing.get_args(hint)
        if hint is typing.Union or origin in (typing.Union, types.UnionType):
            if node is None and type(None) in choices:
                return None, None
            concrete = [c for c in choices if c is not type(None)]
            # Optional[AnyLoss] flattens the union that AnyLoss is itself
            kind = next((k for k in self.kinds if set(typing.get_args(k)) == set(concrete)), None)
            return self.value(node, kind or concrete[0], label)
        if isinstance(node, Call) and node == Call("inf"):
            node = math.inf
        if origin is Literal:
            word = node.name if isinstance(node, Call) and not (node.args or node.options) else node
            if word not in choices:
                name = word if isinstance(word, str) else node_label(node)
                raise UsageError(f"'{excerpt(self.text)}': " + did_you_mean(label, name, choices, FORMER_CHOICES))
            return word, Call(word) if isinstance(word, str) else word
        if origin is tuple and isinstance(node, tuple):
            pairs = [self.value(v, choices[0], label) for v in node]
            return tuple(v for v, _ in pairs), tuple(n for _, n in pairs)
        if (isinstance(node, int) or (hint is int and isinstance(node, float))) and LARGEST < abs(node) < math.inf:
            raise UsageError(f"'{excerpt(self.text)}': {label} is out of any range")
        if hint is bool and isinstance(node, bool):
            return node, node
        if hint is int and isinstance(node, int | float) and not isinstance(node, bool) and float(node).is_integer():
            return int(node), int(node)
        if isinstance(node, float) and not math.isfinite(node) and not label.endswith("(kappa=...)"):
            raise UsageError(f"'{excerpt(self.text)}': {label} must be finite")
        if hint is float and isinstance(node, int | float) and not isinstance(node, bool) and node == node:
            return float(node), float(node)
        if hint is str and isinstance(node, str):
            return node, node
        wanted = {bool: "True or False", int: "a whole number", float: "a number", str: "a quoted text"}
        if origin is tuple:
            wanted[hint] = "a tuple, such as (0.5,)"
        raise UsageError(
            f"'{excerpt(self.text)}': {label} takes {wanted.get(hint, 'another value')}, not {node_label(node)}"
        )


def is_required(parameter: inspect.Parameter) -> bool:
    """Whether a parameter has no default; that of a dataclass field with a factory is a marker of its own."""
    return parameter.default is inspect.Parameter.empty
