"""YAML values that know their line, for messages that say FILE:LINE; tags and excessive aliases are refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.reader import ReaderError

from vitattack.core.errors import UsageError, first_line, text_failure
from vitattack.core.registry import did_you_mean
from vitattack.core.words import printable

T = TypeVar("T")

LARGEST = 1 << 18
DEEPEST = 12
MOST_VALUES = 50_000  # an alias counts as often as it is used
_OTHER_NUMBER = re.compile(r"[-+]?0[0-7_]*[0-7][0-7_]*|[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
_SCALARS = ("str", "int", "float", "bool", "null", "timestamp", "value")


class _Misread(yaml.constructor.ConstructorError):
    """YAML 1.1 reads something else than what seems to be written."""


def _number(loader: Any, node: ScalarNode) -> int | float:
    """A number, unless it begins with a zero, which makes it octal, or has colons, which make it count in sixties."""
    read = loader.construct_yaml_int if node.tag.endswith(":int") else loader.construct_yaml_float
    value: int | float = read(node)
    if _OTHER_NUMBER.fullmatch(node.value):
        sign, digits = re.fullmatch(r"([-+]?)(.*)", node.value).groups()  # type: ignore[union-attr]
        decimal = sign.strip("+") + digits.replace("_", "").lstrip("0")
        meant = f"{node.value!r} in quotes, or the number" if ":" in digits else f"{decimal}, or quotes around a text"
        raise _Misread(None, None, f"{node.value!r} is {value:g} in YAML 1.1: write {meant}", node.start_mark)
    return value


def _mapping(loader: Any, node: MappingNode, deep: bool = False) -> Any:
    """A mapping, unless a key stands in it twice."""
    seen: set[str] = set()
    for key, _ in node.value:
        if isinstance(key, ScalarNode) and key.value in seen and key.value != "<<":
            raise _Misread(None, None, f"the key '{printable(key.value)}' stands twice: keep one", key.start_mark)
        seen.add(str(key.value))
    return yaml.SafeLoader.construct_mapping(loader, node, deep)


def _strict(base: Any) -> type[yaml.SafeLoader]:
    loader: Any = type(f"Strict{base.__name__}", (base,), {"construct_mapping": _mapping})
    for kind in ("int", "float"):
        loader.add_constructor(f"tag:yaml.org,2002:{kind}", _number)
    return cast(type[yaml.SafeLoader], loader)


# The parser in C is eight times as fast, but only the one in Python survives deep nesting.
LOADER = _strict(yaml.SafeLoader)
FAST_LOADER = _strict(getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@dataclass(frozen=True)
class Item:
    """A value with its file and line; items of lists and mappings carry their own."""

    value: Any  # a scalar, a list of items, or a dict of items by key
    line: int
    file: str

    def refuse(self, message: str) -> NoReturn:
        """Raise a UsageError that names the place."""
        raise UsageError(f"{self.file}:{self.line}: {message}")

    def keys(self, kind: str, known: Collection[str]) -> dict[str, Item]:
        """The keys of a mapping, all of them known."""
        if not isinstance(self.value, dict):
            self.refuse(f"{kind} is keys and values, not {self.shown}: write {{{next(iter(known))}: ...}}")
        for key, item in self.value.items():
            if key not in known:
                item.refuse(f"{kind}: " + did_you_mean("key", printable(key), known))
        return self.value

    def items(self, what: str) -> list[Item]:
        """The items of a list; a single value is a list of one."""
        if isinstance(self.value, list):
            return self.value
        if self.value is None or isinstance(self.value, dict):
            self.refuse(f"{what} is a list, not {self.shown}: write {what}: [...]")
        return [self]

    def text(self, what: str) -> str:
        if not isinstance(self.value, str) or not self.value.strip():
            self.refuse(f"{what} is a text, not {self.shown}: put it in quotes")
        if not self.value.isprintable():
            self.refuse(f"{what} is one line of text: {printable(self.value)!r} holds control characters")
        return self.value.strip()

    def whole(self, what: str, least: int, most: int = 10**12) -> int:
        if isinstance(self.value, bool) or not isinstance(self.value, int) or not least <= self.value <= most:
            self.refuse(f"{what} is a whole number from {least} on, not {self.shown}: write {what}: {max(least, 1)}")
        return self.value

    def number(self, what: str, least: float, most: float) -> float:
        if isinstance(self.value, bool) or not isinstance(self.value, int | float) or not least <= self.value <= most:
            self.refuse(f"{what} is a number from {least:g} to {most:g}, not {self.shown}: correct it")
        return float(self.value)

    def truth(self, what: str) -> bool:
        if not isinstance(self.value, bool):
            self.refuse(f"{what} is true or false, not {self.shown}: correct it")
        return self.value

    @property
    def plain(self) -> Any:
        """The value without its lines."""
        if isinstance(self.value, dict):
            return {key: item.plain for key, item in self.value.items()}
        return [item.plain for item in self.value] if isinstance(self.value, list) else self.value

    @property
    def shown(self) -> str:
        kinds = {dict: "keys and values", list: "a list", type(None): "nothing"}
        return kinds.get(type(self.value)) or printable(repr(self.value), 60)


def load_yaml(path: Path, kind: str = "benchmark", *, shipped: bool = False) -> Item:
    """The content of a file; one that comes with vitattack is read by the fast parser."""
    name = printable(str(path))
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # opening a pipe waits for whoever writes it
            raise UsageError(f"cannot read the {kind} '{name}' (it is no file): check the path")
        with path.open("rb") as stream:
            content = stream.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise UsageError(f"'{name}' is larger than {LARGEST >> 10} KB, more than any {kind}: check it")
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the {kind} '{name}' ({text_failure(error)}): check the path") from error
    return parse_yaml(text, name, FAST_LOADER if shipped else LOADER)


def parse_yaml(text: str, name: str, loader_type: type[yaml.SafeLoader] = LOADER) -> Item:
    """The content of a text; `name` says in messages where it stands."""
    _check_depth(text, name)
    try:
        loader = loader_type(text)
        try:
            return _Walk(loader, name).item(loader.get_single_node(), 0)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        reason = printable(str(error.problem or error.context))
        raise UsageError(f"{name}:{line}: this is not readable YAML ({reason}): correct it") from error
    except yaml.YAMLError as error:
        position = error.position if isinstance(error, ReaderError) else 0
        line = text.count("\n", 0, position) + 1
        reason = printable(first_line(error))
        raise UsageError(f"{name}:{line}: this is not readable YAML ({reason}): correct it") from error
    except RecursionError as error:
        raise UsageError(f"{name}:1: the lists and keys are nested too deeply: flatten them") from error


def _check_depth(text: str, name: str) -> None:
    """A rough count of brackets: the parser's time grows with the square of their depth."""
    depth = 0
    for number, line in enumerate(text.splitlines(), 1):
        for character in re.findall(r"[\[\]{}]", line):
            depth = max(0, depth + (1 if character in "[{" else -1))
            if depth > DEEPEST * 10:
                raise UsageError(f"{name}:{number}: the lists and keys are nested too deeply: flatten them")


class _Walk:
    def __init__(self, loader: yaml.SafeLoader, file: str) -> None:
        self.loader, self.file, self.seen = loader, file, 0

    def item(self, node: Node | None, depth: int, line: int | None = None) -> Item:
        """`line` is that of the key, where the value of a key begins on a later one."""
        if node is None:
            return Item(None, 1, self.file)
        here = Item(None, node.start_mark.line + 1 if line is None else line, self.file)
        self.seen += 1
        if self.seen > MOST_VALUES:
            here.refuse(f"the aliases of this file stand for more than {MOST_VALUES:,} values: write them out")
        if depth > DEEPEST:
            here.refuse("the lists and keys are nested too deeply: flatten them")
        tag = node.tag.removeprefix("tag:yaml.org,2002:")
        if isinstance(node, MappingNode) and tag == "map":
            return Item(dict(self._pairs(node, depth)), here.line, self.file)
        if isinstance(node, SequenceNode) and tag == "seq":
            return Item([self.item(part, depth + 1) for part in node.value], here.line, self.file)
        if not isinstance(node, ScalarNode) or tag not in _SCALARS:
            here.refuse(f"the tag {printable(node.tag, 40)} is refused: write the plain value")
        if tag in ("str", "timestamp", "value"):
            return Item(str(node.value), here.line, self.file)
        try:
            value = self.loader.construct_object(node)
        except _Misread as error:
            here.refuse(printable(str(error.problem), 120))
        except (yaml.YAMLError, ValueError, OverflowError):
            here.refuse(f"{printable(str(node.value), 40)!r} is no {tag}: put it in quotes if it is a text")
        if isinstance(value, int) and value.bit_length() > 64:
            here.refuse(f"{printable(str(node.value), 40)} is out of any range: correct it")
        return Item(value, here.line, self.file)

    def _pairs(self, node: MappingNode, depth: int) -> Iterator[tuple[str, Item]]:
        seen: dict[str, int] = {}
        for key, value in node.value:
            at = Item(None, key.start_mark.line + 1, self.file)
            if not isinstance(key, ScalarNode):
                at.refuse("a key is one word: write key: value")
            name = str(key.value)
            if name in seen:
                at.refuse(f"the key '{printable(name)}' stands twice, first in line {seen[name]}: keep one")
            seen[name] = at.line
            # what is wrong with a scalar is where its key is; lists and mappings say where they begin
            yield name, self.item(value, depth + 1, at.line if isinstance(value, ScalarNode) else None)


def yaml_failure(error: yaml.YAMLError) -> str:
    """The line and the reason, without the text around it that the parser would quote."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        return f"line {mark.line + 1 if mark else 1}: {printable(str(error.problem or error.context))}"
    return printable(first_line(error))


def is_schema(value: object, number: int = 1) -> bool:
    """Whether a file says that it is of this schema; `true` and `1.0` equal 1, but are not what was asked for."""
    return type(value) is int and value == number


def checked(item: Item, use: Callable[[], T]) -> T:
    """Call `use`; a UsageError of it is raised with the place of the item."""
    try:
        return use()
    except UsageError as error:
        if str(error).startswith(f"{item.file}:"):
            raise
        item.refuse(str(error))


def refuse_unknown(kind: str, name: str, known: Iterable[str]) -> NoReturn:
    """Refuse a name that is not among those known."""
    raise UsageError(did_you_mean(kind, name, known))
