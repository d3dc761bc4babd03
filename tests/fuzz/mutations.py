"""Strategies for nearly valid inputs: valid ones with a few edits, which hypothesis drops one by one when it minimises."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import yaml
from hypothesis import strategies as st

ODD_WORDS = (
    *"null ~ true yes nan .inf -.inf inf -inf 1e400 -1 0 -0.0 010 00000000000001 1:30".split(),
    *"0x1F 1_000 1e-400 1. .5 1/0 8/255 ٣ ² é".split(),
    *("18446744073709551616", "9223372036854775808", "9" * 25, "1" * 400, "a" * 300, "a" * 5000, "[" * 30, "(" * 90),
    *("\x00", "\x1b[31m", "\u202e", "\u2028", "\ud800", "\ufeff", "\n", "\r\n", "\t", "", " "),
    *"[/x] [bold] =1+1 &a *a << | > % --- ... # {} [] [[[[[]]]]] () (,) **x *x f'' ../.. /etc/passwd ~root".split(),
    *(
        "!!python/object/apply:os.system [id]",
        "!!binary aGk=",
        "{a: 1}",
        "- ",
        ": ",
        "? x",
        "lambda: 0",
        "x if y else z",
    ),
    *"__import__('os') os.system http://x https://[ https://a:b@c/ file:".split(),
)
ODD_VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2**31,
        2**63,
        2**64,
        -(2**63) - 1,
        10**30,
        0.5,
        -0.0,
        1e308,
        10**400,
        math.inf,
        math.nan,
    ),
    *(
        "",
        "x",
        "a\nb",
        "\x1b[0m",
        "\u202e",
        "pgd",
        "linf:8/255",
        "tiny-vit",
        "cifar10-demo[:4]",
        "1e-3",
        "[/x]",
        "a" * 3000,
    ),
    *([], {}, [[]], [None], ["x", "x"], [1, 2, 3], [[1.0], [2.0]]),
    *({"a": 1}, {"from": "x"}, {"": ""}, {"mean": [0.5], "std": [0]}),
)
INTERESTING_BYTES = (
    *(b"\x00", b"\xff", b"\x7f", b"\x80", bytes(8), b"\xff" * 4, b"\xff" * 8, b"\x00\x00\x00\x80", b"\xff\xff\xff\x7f"),
    *(
        b"PK\x03\x04",
        b"\x89PNG\r\n\x1a\n",
        b"\x93NUMPY",
        b"{",
        b"}",
        b"\x80\x02",
        b"<html>",
        b"\n",
        b"%!PS\n",
        b"\x1f\x8b",
    ),
)


def odd_texts() -> st.SearchStrategy[str]:
    """Words that break parsers, numbers, and any text."""
    number = st.one_of(st.integers().map(str), st.floats().map(repr), st.integers(0, 12).map(str))
    return st.one_of(st.sampled_from(ODD_WORDS), number, st.text(max_size=12))


_TOKEN = re.compile(r"\d+|[^\W\d]+|[^\w\s]|\s+")
_LINE_EDITS = ("drop", "double", "indent", "swap")


@st.composite
def edited_texts(draw: st.DrawFn, seeds: Sequence[str], most: int = 4) -> str:
    """A text of the seeds with words and lines replaced, dropped, doubled or moved."""
    text = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(0, most))):
        kind = draw(st.sampled_from(("word", "word", "insert", "cut", *_LINE_EDITS)))
        if kind in _LINE_EDITS:
            text = _edit_line(draw, text, kind)
        elif kind == "word":
            tokens = _TOKEN.findall(text) or [""]
            at = draw(st.integers(0, len(tokens) - 1))
            tokens[at] = draw(st.one_of(odd_texts(), st.sampled_from(tokens)))
            text = "".join(tokens)
        elif kind == "insert":
            at = draw(st.integers(0, len(text)))
            text = text[:at] + draw(odd_texts()) + text[at:]
        else:
            text = text[: draw(st.integers(0, len(text)))]
    return text


def _edit_line(draw: st.DrawFn, text: str, kind: str) -> str:
    lines = text.split("\n")
    at = draw(st.integers(0, len(lines) - 1))
    if kind == "drop":
        del lines[at]
    elif kind == "double":
        lines.insert(at, lines[at])
    elif kind == "indent":
        lines[at] = " " * draw(st.integers(0, 6)) + lines[at].lstrip()
    else:
        other = draw(st.integers(0, len(lines) - 1))
        lines[at], lines[other] = lines[other], lines[at]
    return "\n".join(lines)


@st.composite
def edited_trees(draw: st.DrawFn, seeds: Sequence[Any], words: Sequence[str] = (), most: int = 3) -> Any:
    """A document of the seeds with values replaced, keys renamed, items dropped, doubled or moved."""
    tree = copy.deepcopy(draw(st.sampled_from(seeds)))
    odd = st.sampled_from(ODD_VALUES).map(copy.deepcopy)
    values = st.one_of(odd, odd_texts(), st.sampled_from(words) if words else st.none())
    for _ in range(draw(st.integers(0, most))):
        places = list(_places(tree))
        if not places:
            return draw(values)
        holder, key = draw(st.sampled_from(places))
        kind = draw(st.sampled_from(("value", "value", "drop", "rename", "borrow", "add", "wrap")))
        if kind == "value":
            holder[key] = draw(values)
        elif kind == "borrow":
            other, name = draw(st.sampled_from(places))
            holder[key] = copy.deepcopy(other[name])
        elif kind == "wrap":
            holder[key] = draw(st.sampled_from(([holder[key]], {"a": holder[key]}, [holder[key]] * 2)))
        elif isinstance(holder, list):
            (holder.append(draw(values)) if kind == "add" else holder.pop(key))
        elif kind == "add":
            holder[draw(odd_texts())] = draw(values)
        else:
            value = holder.pop(key)
            if kind == "rename":
                holder[draw(odd_texts())] = value
    return tree


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """All pairs of a container and a key in it."""
    found: list[tuple[Any, Any]] = []
    waiting = [tree]
    while waiting and len(found) < 3000:
        value = waiting.pop()
        keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        found += [(value, key) for key in keys]
        waiting += [value[key] for key in keys]
    return found


def edited_yaml(seeds: Sequence[str], words: Sequence[str] = ()) -> st.SearchStrategy[str]:
    """YAML texts of the seeds, edited as trees or as texts."""
    trees = [yaml.safe_load(seed) for seed in seeds]
    dumped = edited_trees(trees, words).map(lambda tree: yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))
    return st.one_of(dumped, edited_texts(seeds))


def edited_json(seeds: Sequence[Any]) -> st.SearchStrategy[bytes]:
    """JSON files of the seeds, edited as trees, as texts or as bytes."""
    texts = [json.dumps(seed, indent=1) for seed in seeds]
    as_bytes: Callable[[str], bytes] = lambda text: text.encode(errors="surrogatepass")  # noqa: E731
    return st.one_of(
        edited_trees(seeds).map(json.dumps).map(as_bytes),
        edited_texts(texts).map(as_bytes),
        edited_bytes([text.encode() for text in texts]),
        st.sampled_from((b"", b"[" * 100_000, b'{"a":' * 50_000, b"9" * 5000, b"NaN", b"\xff\xfe{}", b'{"a": 1e999}')),
    )


@st.composite
def edited_bytes(draw: st.DrawFn, seeds: Sequence[bytes], most: int = 5) -> bytes:
    """A file of the seeds with bytes flipped, numbers replaced, and pieces cut, doubled, inserted or taken from another."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, most))):
        kind = draw(st.sampled_from(("flip", "flip", "replace", "insert", "drop", "cut", "double", "splice", "number")))
        # structure stands at the ends of files
        near = draw(st.sampled_from(("start", "end", "any")))
        span = len(data) if near == "any" else min(len(data), 256)
        at = draw(st.integers(0, max(0, span - 1)))
        at = len(data) - 1 - at if near == "end" else at
        at = max(0, at)
        if kind == "flip" and data:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "replace":
            piece = draw(st.one_of(st.sampled_from(INTERESTING_BYTES), st.binary(max_size=8)))
            data[at : at + len(piece)] = piece
        elif kind == "number":
            width, order = draw(st.sampled_from((2, 4, 8))), draw(st.sampled_from(("little", "big")))
            value = draw(st.one_of(st.integers(0, 2 ** (8 * width) - 1), st.sampled_from((0, 1, 255, 65535))))
            data[at : at + width] = value.to_bytes(width, order)  # type: ignore[arg-type]
        elif kind == "insert":
            data[at:at] = draw(st.one_of(st.sampled_from(INTERESTING_BYTES), st.binary(max_size=40)))
        elif kind == "drop":
            del data[at : at + draw(st.integers(1, 64))]
        elif kind == "cut":
            del data[at:]
        elif kind == "double":
            data[at:at] = data[at : at + draw(st.integers(1, 64))]
        elif kind == "splice":
            other = draw(st.sampled_from(seeds))
            start = draw(st.integers(0, len(other)))
            data[at:] = other[start:]
    return bytes(data)
