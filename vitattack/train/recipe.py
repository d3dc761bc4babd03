"""A recipe: everything that decides what comes out of a training run, as one value with a YAML form."""

from __future__ import annotations

import hashlib
import json
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

from vitattack.core.assets import RECIPES
from vitattack.core.errors import UsageError
from vitattack.core.registry import did_you_mean
from vitattack.core.words import printable
from vitattack.text import yaml_lines

DEEPEST = 5
SUFFIXES = (".yaml", ".yml")
# What people read and no run depends on.
WORDS = ("name", "summary", "paper", "published", "cost")


@dataclass(frozen=True)
class Recipe:
    """Texts and numbers only. Parts are named as attacks are: `trades(beta=6)`, `adamw(lr=1e-3)`, `ema(0.998)`.

    `published` lists what the paper reports, `cost` says what a run takes; both are for people.
    """

    name: str
    summary: str = ""
    paper: str = ""
    published: tuple[Mapping[str, Any], ...] = ()
    cost: str = ""

    arch: str = "small:tiny_vit_32"
    arch_kwargs: Mapping[str, Any] = field(default_factory=dict)
    normalize: str = "cifar10"
    init: str | None = None  # a zoo id, timm:ARCH.TAG, or a file; a classifier of other classes starts anew
    init_adapter: tuple[str, ...] = ()  # such as vit-patch, for other patch and image sizes

    data: str = "cifar10-train"
    validation: int = 1000  # rows held out of `data`, drawn with the seed
    synthetic: str | None = None  # a data text, such as npz:PATH: the second stream
    share: float = 0.0  # of it in every batch: int(batch_size * share) rows
    augment: tuple[str, ...] = ()

    threat: str = "linf:8/255"
    objective: str = "standard"
    hooks: tuple[str, ...] = ()

    optimiser: str = "adamw"
    rate: str = "constant"
    epochs: int = 10  # 0 exports the first weights
    batch_size: int = 128
    accumulate: int = 1  # pieces a batch is cut into, for less memory; batch norms and mixup see one piece
    precision: Literal["fp32", "bf16"] = "fp32"
    seed: int = 0
    export: Literal["fp32", "fp16"] = "fp32"
    probe: int = 256  # of the held-out images are attacked after every epoch

    def __post_init__(self) -> None:
        for key, least in (("epochs", 0), ("batch_size", 1), ("accumulate", 1), ("validation", 0), ("probe", 0)):
            if getattr(self, key) < least:
                raise UsageError(f"recipe '{self.name}': {key} is at least {least}, not {getattr(self, key)}")
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"recipe '{self.name}': seed is a whole number from 0 on, not {self.seed}")
        if not 0 <= self.share < 1:
            raise UsageError(f"recipe '{self.name}': share is from 0 to below 1, not {self.share:g}")
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,79}", self.name):
            raise UsageError(f"recipe name '{printable(self.name)}' is no file name: use letters, digits and - _ .")

    def json(self) -> dict[str, Any]:
        return json.loads(json.dumps(asdict(self)))  # type: ignore[no-any-return]

    @property
    def key(self) -> str:
        """Equal for recipes that do the same, whatever they are called; of the canonical recipe."""
        content = {k: v for k, v in self.json().items() if k not in WORDS}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def shipped() -> dict[str, Path]:
    """The recipes that come with vitattack."""
    return {path.stem: path for path in sorted(RECIPES.glob("*.yaml"))}


def load(text: str, changes: Sequence[str] = ()) -> Recipe:
    """The recipe of a name or a YAML file, with changes: `key=value`, or a YAML file whose keys go over what is there.

    A name stands for benchmarks/train/NAME.yaml.
    """
    content = _content(text, DEEPEST)
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals and change.endswith(SUFFIXES):
            over = _keys(Path(change))
            if "base" in over:
                raise UsageError(f"'{change}' has a base of its own: train it alone, or drop its line base")
            content |= over
            continue
        if not equals:
            raise UsageError(f"'{printable(change)}' is no change of a recipe: write key=value, such as epochs=20")
        content[key.strip()] = _changed(_hint(key.strip()), key, value)
    return _made(content)


def _changed(hint: Any, key: str, value: str) -> Any:
    """A value as it was typed; a list of calls is cut at the commas between them, not at those inside."""
    if hint is str:
        return value
    if hint == tuple[str, ...]:
        inner = value.strip().removeprefix("[").removesuffix("]")
        cuts = [at for at, c in enumerate(inner) if c == "," and inner[:at].count("(") == inner[:at].count(")")]
        parts = [inner[a + 1 : b].strip() for a, b in zip([-1, *cuts], [*cuts, len(inner)], strict=True)]
        return [part for part in parts if part]
    return yaml_lines.parse(value, printable(f"{key}=...")).plain


def of_json(content: Mapping[str, Any]) -> Recipe:
    """A recipe as a run stored it."""
    return _made(content)


def _content(text: str, depth: int) -> dict[str, Any]:
    """The keys of a file over those of its `base`."""
    path = Path(text) if text.endswith(SUFFIXES) else shipped().get(text)
    if path is None:
        raise UsageError(did_you_mean("recipe", printable(text), [*shipped(), "FILE.yaml"]))
    content = _keys(path)
    base = content.pop("base", None)
    if base is None:
        return {"name": path.stem, **content}
    if not isinstance(base, str) or depth == 0:
        raise UsageError(f"'{path.name}': base is the name of another recipe, and chains of them are short")
    beside = path.with_name(f"{base}.yaml")
    under = _content(str(beside) if not base.endswith(SUFFIXES) and beside.is_file() else base, depth - 1)
    return {**under, "name": path.stem, **content}


def _keys(path: Path) -> dict[str, Any]:
    """The keys of one file."""
    content = yaml_lines.load(path, "recipe").plain
    if not isinstance(content, dict):
        raise UsageError(f"'{path.name}' is no recipe: write keys and values, such as objective: trades(beta=6)")
    if content.pop("schema", 1) != 1:
        raise UsageError(f"'{path.name}' is written for another version of vitattack: this one reads schema: 1")
    return content


@cache
def _hints() -> dict[str, Any]:
    return typing.get_type_hints(Recipe)


def _hint(key: str) -> Any:
    return _hints().get(key)


def _made(content: Mapping[Any, Any]) -> Recipe:
    name = printable(str(content.get("name")))
    known = [f.name for f in fields(Recipe)]
    for key in content:
        if key not in known:
            raise UsageError(f"recipe '{name}': " + did_you_mean("key", printable(str(key)), known))
    return Recipe(**{key: _value(name, key, value, _hint(key)) for key, value in content.items()})


def _value(name: str, key: str, value: Any, hint: Any) -> Any:
    """A value of the kind its key wants."""
    origin, choices = typing.get_origin(hint), typing.get_args(hint)
    if hint == str | None:
        if value is None:
            return None
        hint = str
    if origin is Literal and value in choices:
        return value
    if hint is str and isinstance(value, str):
        return value
    if hint is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if hint is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            return float(value)  # YAML takes 1e-3 for a word
        except ValueError:
            pass
    if origin is tuple:
        parts = value if isinstance(value, list) else [] if value is None else [value]
        wanted: Any = str if choices[0] is str else Mapping
        if all(isinstance(part, wanted) for part in parts):
            return tuple(parts)
    if origin is Mapping and isinstance(value, dict) and all(isinstance(k, str) for k in value):
        return value
    kinds = {str: "a text", int: "a whole number", float: "a number"}
    words = " or ".join(map(str, choices)) if origin is Literal else kinds.get(hint)
    many = "a list of texts" if choices and choices[0] is str else "a list of keys and values"
    wanted_words = words or (many if origin is tuple else "keys and values")
    raise UsageError(f"recipe '{name}': {key} is {wanted_words}, not {printable(repr(value), 60)}")
