"""Syntax of attack texts: names, calls, literals and `+ - * /` as in Python, parsed and never evaluated."""

from __future__ import annotations

import ast
import math
import typing
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from vitattack.core.errors import UsageError

LONGEST = 4000
DEEPEST = 60  # calls in calls: whatever reads the tree recurses


@dataclass(frozen=True)
class Call:
    """A name with its arguments, not yet looked up."""

    name: str
    args: tuple[Node, ...] = ()
    options: tuple[tuple[str, Node], ...] = ()


Node = Call | int | float | str | bool | None | tuple["Node", ...]


@dataclass(frozen=True)
class AttackSyntax:
    """An attack text with its syntax tree, so that whoever is handed it need not parse the text again."""

    text: str
    root: Node

    @classmethod
    def of(cls, source: str | AttackSyntax) -> AttackSyntax:
        """Parse a text; a tree is taken as it is."""
        return cls(source, parse_syntax(source)) if isinstance(source, str) else source

    def calls(self, name: str) -> bool:
        """Whether the text calls this name anywhere."""

        def within(node: Node) -> bool:
            if isinstance(node, Call):
                return node.name == name or any(map(within, (*node.args, *(value for _, value in node.options))))
            return isinstance(node, tuple) and any(map(within, node))

        return within(self.root)

    def with_options(self, name: str, options: Mapping[str, Node]) -> AttackSyntax:
        """Set options of every call of this name; the text stays as the user typed it."""

        def replaced(node: Node) -> Node:
            if isinstance(node, tuple):
                return tuple(map(replaced, node))
            if not isinstance(node, Call):
                return node
            own = {option: replaced(value) for option, value in node.options}
            return Call(
                node.name,
                tuple(map(replaced, node.args)),
                tuple({**own, **(options if node.name == name else {})}.items()),
            )

        return AttackSyntax(self.text, replaced(self.root))


AttackSource = str | AttackSyntax


def parse_syntax(text: str) -> Node:
    """Parse a text to a tree whose names are not yet looked up."""
    if len(text) > LONGEST:
        raise UsageError(f"attack text of {len(text)} characters: {LONGEST} are the most")
    try:
        tree = _parsed(text)
        node = _node(tree, text)
        _check_depth(node, text, DEEPEST)
        return node
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"'{excerpt(text)}' is no attack: write it like pgd(steps=20) or worst(pgd, gama)") from None


def _parsed(text: str) -> ast.expr:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of code that would be odd if anybody ran it
        return ast.parse(text.strip(), mode="eval").body


def _check_depth(node: Node, text: str, left: int) -> None:
    parts = node if isinstance(node, tuple) else ()
    if isinstance(node, Call):
        parts = (*node.args, *(value for _, value in node.options))
    for part in parts:
        if left == 0:
            raise UsageError(f"'{excerpt(text)}' nests attacks too deeply: {DEEPEST} in each other are the most")
        _check_depth(part, text, left - 1)


def excerpt(text: str) -> str:
    """A text on one line, cut for a message."""
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."


def _refuse(tree: ast.AST, text: str) -> NoReturn:
    segment = ast.get_source_segment(text.strip(), typing.cast(ast.expr, tree)) or type(tree).__name__
    raise UsageError(
        f"'{excerpt(segment)}' has no place in an attack: use names, numbers and calls, as in pgd(steps=20)"
    )


def _node(tree: ast.expr, text: str) -> Node:
    match tree:
        case ast.Name(id=name):
            return Call(name)
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return tuple(_node(item, text) for item in items)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            if any(isinstance(arg, ast.Starred) for arg in args):
                _refuse(tree, text)
            options = []
            for keyword in keywords:
                if keyword.arg is None:
                    _refuse(tree, text)
                options.append((keyword.arg, _node(keyword.value, text)))
            return Call(name, tuple(_node(arg, text) for arg in args), tuple(options))
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            number = _node(operand, text)
            if number == Call("inf"):
                number = math.inf
            if isinstance(number, bool) or not isinstance(number, int | float):
                _refuse(tree, text)
            return -number if isinstance(sign, ast.USub) else number
        case ast.BinOp(left=left, op=operator, right=right):
            return _combine(_node(left, text), operator, _node(right, text), tree, text)
    _refuse(tree, text)


def _combine(a: Node, operator: ast.operator, b: Node, tree: ast.expr, text: str) -> Node:
    if isinstance(a, Call) and isinstance(b, Call) and isinstance(operator, ast.Add):
        return _nest(a, b)
    if any(isinstance(v, bool) or not isinstance(v, int | float) for v in (a, b)):
        _refuse(tree, text)
    x, y = typing.cast(float, a), typing.cast(float, b)
    match operator:
        case ast.Add():
            return x + y
        case ast.Sub():
            return x - y
        case ast.Mult():
            return x * y
        case ast.Div() if y:
            return x / y
        case ast.Div():
            raise UsageError(f"'{excerpt(text)}' divides by zero")
    _refuse(tree, text)


def _nest(outer: Call, inner: Call) -> Call:
    """a + b -> a(b); a(b) + c -> a(b(c)), since `+` groups to the left."""
    if outer.args and isinstance(outer.args[-1], Call):
        return Call(outer.name, (*outer.args[:-1], _nest(outer.args[-1], inner)), outer.options)
    return Call(outer.name, (*outer.args, inner), outer.options)


def node_text(node: Node) -> str:
    """The canonical source of a node."""
    if isinstance(node, Call):
        arguments = [*map(node_text, node.args), *(f"{name}={node_text(value)}" for name, value in node.options)]
        return f"{node.name}({', '.join(arguments)})" if arguments else node.name
    if isinstance(node, tuple):
        return "(" + "".join(f"{node_text(item)}, " for item in node).rstrip(" ") + ")"
    if isinstance(node, float) and node.is_integer() and abs(node) < 1e15:
        return str(int(node))
    return repr(node)


def node_label(node: Node) -> str:
    """A node in short, for a message."""
    if isinstance(node, tuple):
        return f"({', '.join(map(node_label, node))})"
    return node.name if isinstance(node, Call) else repr(node)


def arguments(text: str) -> tuple[str, ...]:
    """The sources of the plain arguments of a call, word for word."""
    tree = _parsed(text)
    found = tree.args if isinstance(tree, ast.Call) else []
    return tuple(ast.get_source_segment(text.strip(), argument) or "" for argument in found)


def first_argument(text: str) -> str | None:
    """The source of the first argument of a call, word for word; None for anything without one."""
    try:
        tree = _parsed(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    if not isinstance(tree, ast.Call) or not tree.args:
        return None
    return ast.get_source_segment(text.strip(), tree.args[0])
