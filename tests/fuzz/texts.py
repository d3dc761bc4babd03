"""Fuzzed texts: attacks, threats, data, rows, transforms, normalisations, weights sources, model names."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.fuzz.guard import expect
from tests.fuzz.mutations import ODD_WORDS, edited_texts, odd_texts
from tests.fuzz.target import Target, scratch
from vitattack.attacks import attack_text
from vitattack.attacks.attack_text import KINDS, signature_of
from vitattack.attacks.base import Attack
from vitattack.attacks.catalogue import ATTACKS
from vitattack.core.errors import UsageError, WrongThreat
from vitattack.data.catalogue import DATA_SETS
from vitattack.data.dataset import load_data
from vitattack.data.protocols import PROTOCOLS
from vitattack.data.request import check_data, takes_transform
from vitattack.data.rows import select_rows
from vitattack.models.normalise import is_normaliser, parse_normaliser
from vitattack.models.weights.cache import weights_location
from vitattack.models.weights.sources import WeightSources, parse_source, safe_address
from vitattack.models.zoo.file_options import FileOptions
from vitattack.models.zoo.names import check_model_name
from vitattack.text.image_transform import MOST_PIXELS, parse_transform
from vitattack.threats.base import parse_threat, parse_threats


def _factory(kind: Any, name: str) -> Any:
    entry = KINDS[kind][name]
    return entry.factory if kind is Attack else entry


def _parameters(kind: Any, name: str) -> list[str]:
    try:
        return list(signature_of(_factory(kind, name)).parameters)
    except UsageError:  # an optional package is not installed
        return []


def _options() -> list[str]:
    """The names of all options of all parts, and words that are no options."""
    names = {option for kind in KINDS for name in KINDS[kind] for option in _parameters(kind, name)}
    return [*sorted(names), "eps", "ball", "nothing"]


def attack_texts() -> st.SearchStrategy[str]:
    """Calls of attacks and their parts in each other, with options of the right names and odd values; then edited."""
    every = sorted({name for kind in KINDS for name in KINDS[kind]})
    options = _options()
    numbers = st.one_of(
        st.sampled_from(
            ("0", "1", "2", "-1", "10", "0.5", "1e-3", "1e9", "10**9", "inf", "-inf", "True", "None", "'x'")
        ),
        st.integers(-5, 200).map(str),
        st.floats(allow_nan=False).map(repr),
    )
    words = st.sampled_from(
        [*every, "'ce'", "x", "[]", "(0.5, 0.3)", "(1,)", "((0.5,), (1.0,))", "layer", "head", "hinge"]
    )

    def call(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        option = st.tuples(st.sampled_from(options), inner).map("=".join)
        inside = st.lists(st.one_of(inner, option), max_size=3).map(", ".join)
        nested = st.tuples(st.sampled_from(every), inside).map(lambda pair: f"{pair[0]}({pair[1]})")
        return st.one_of(nested, st.tuples(inner, inner).map("+".join))

    made = st.recursive(st.one_of(numbers, words), call, max_leaves=6)
    fitting = st.sampled_from([name for name in every if name in ATTACKS]).flatmap(_with_own_options)
    seeds = [entry.quick for entry in (ATTACKS[name] for name in ATTACKS)]
    return st.one_of(made, fitting, fitting, edited_texts(seeds))


def _with_own_options(name: str) -> st.SearchStrategy[str]:
    """The example of an attack with options of its own, of the types that they have."""
    signature = signature_of(_factory(Attack, name))
    pairs = [st.tuples(st.just(option), _value(signature.hints.get(option))) for option in signature.parameters]
    chosen = st.lists(st.one_of(pairs) if pairs else st.nothing(), max_size=3, unique_by=lambda p: p[0])
    if not pairs:
        return st.just(name)
    return chosen.map(lambda options: f"{name}({', '.join(f'{o}={v}' for o, v in options)})")


def _value(hint: Any) -> st.SearchStrategy[str]:
    text = str(hint)
    for kind, registry in KINDS.items():
        if hint == kind or (kind is not Attack and getattr(kind, "__name__", "?") in text):
            return st.sampled_from(sorted(registry))
    ways = [st.sampled_from(ODD_WORDS[:30])]
    if "int" in text or "float" in text or hint is inspect.Parameter.empty:
        ways += [st.integers(-2, 300).map(str), st.floats(0, 10).map(repr), st.floats().map(repr)]
    if "bool" in text:
        ways.append(st.sampled_from(("True", "False")))
    if "Literal" in text or "str" in text:
        quoted = [word.strip("' ") for word in text.partition("[")[2].rstrip("]").split(",")]
        ways += [st.sampled_from([word or "x" for word in quoted]), st.sampled_from(("'a'", "'tiny-vit'", "'x:y'"))]
    if "tuple" in text:
        ways.append(st.lists(st.floats(-1, 3), max_size=3).map(lambda values: str(tuple(values))))
    if hint is Attack or "Attack" in text:
        ways.append(st.sampled_from(sorted(ATTACKS)))
    return st.one_of(ways)


THREATS = (
    "linf:8/255",
    "l2:0.5",
    "spatial",
    "spatial:16px,30deg",
    "spatial:4.17%,30deg",
    "linf:0",
    "linf:1",
    "l2:128/255",
)


def _attack(value: tuple[str, str]) -> None:
    text, budget = value
    threat = parse_threat(budget)
    try:
        named = attack_text.parse(text, threat)
    except WrongThreat:
        attack_text.example_attack(text)
        return
    again = attack_text.parse(named.text, threat)
    expect(again.text == named.text, f"{named.text!r} prints as {again.text!r}")
    expect(again.attack == named.attack, f"{named.text!r} is another attack than {text!r}")
    named.attack.doubts(), named.attack.traits, named.attack.stage_names(named.text)


def _threat(text: str) -> None:
    for threat in parse_threats(text):
        again = parse_threat(str(threat))
        expect(again == threat and str(again) == str(threat), f"{threat} is read back as {again}")


ROWS = (
    "[:100]",
    "[5:]",
    "[3:7]",
    "[random:5:1]",
    "[even:4:0]",
    "[limit:3]",
    "[file:rows.txt]",
    "[]",
    "[:]",
    "[0:0]",
    "[9:3]",
)


def data_texts() -> st.SearchStrategy[str]:
    names = [
        *DATA_SETS,
        *PROTOCOLS,
        "cifar10-c/fog/3",
        "imagenet-c/blur/9",
        "folder:x",
        "npz:x.npz",
        "imagenet-classes:x",
    ]
    made = st.tuples(
        st.sampled_from(names), st.sampled_from(("", "@crop224", "@none", "/part", "@")), st.sampled_from(("", *ROWS))
    )
    return st.one_of(made.map("".join), edited_texts([f"{name}{rows}" for name in names[:6] for rows in ROWS]))


def _data(text: str) -> None:
    takes_transform(text)
    check_data(text)


def _selected(text: str) -> None:
    data = load_data(f"cifar10-demo{text}", data_dir=scratch())
    if ":" in data.text and "[file:" not in data.text:
        again = load_data(data.text)
        expect(again.rows == data.rows and again.text == data.text, f"{data.text} is not what {text!r} chose")


def _rows(value: tuple[str, int]) -> None:
    text, total = value
    labels = np.arange(total) // 3
    rows, canonical = select_rows(text, total, "data", lambda: labels.tolist())
    expect(len(rows) > 0 and len(set(rows)) == len(rows) and min(rows) >= 0 and max(rows) < total, f"rows of {text!r}")
    if canonical and not canonical.startswith("file:"):
        expect(select_rows(canonical, total, "data", lambda: labels.tolist()) == (rows, canonical), f"{canonical!r}")


def _transform(text: str) -> None:
    parsed = parse_transform(text)
    sizes = [*(parsed.resize or ()), parsed.short_side or 1, parsed.crop or 1]
    expect(all(0 < size <= MOST_PIXELS for size in sizes), f"{text!r} is {parsed}")


def _normaliser(text: str) -> None:
    pair = parse_normaliser(text)
    expect(pair is None or is_normaliser(*pair), f"{text!r} is {pair}")


def _source(text: str) -> None:
    source = parse_source(text)
    expect(parse_source(source.text) == source, f"{source.text!r} is another source than {text!r}")
    expect("?" not in source.shown or source.kind in ("file", "gdrive"), f"{source.shown!r} shows a query")
    if source.kind in ("github", "gdrive", "nextcloud", "https", "http"):
        safe_address(source.url)
    if source.kind == "file":
        weights_location(WeightSources((text,)), "fuzzed")
    if source.kind == "hf-hub":
        expect(len(source.hub) == 3, source.text)


SOURCES = (
    *"embedded timm:vit_tiny_patch16_224.augreg_in21k hf-hub:a/b@main/model.safetensors hf-hub:a/b gdrive:1abcdefghij".split(),
    *["github:a/b@v1.0/weights.pt", "https://example.com/a/w.pt?sig=1#f", "http://127.0.0.1:8000/w.pt", "file:~/w.pt"],
    *[
        "nextcloud:https://cloud.example/s/Abc123/folder/w.pt",
        "https://user:pw@example.com/x",
        "https://[::1]/x",
        "http://[::1]:80/x",
    ],
)


def _model_name(value: tuple[str, str | None]) -> None:
    name, arch = value
    check_model_name(name, FileOptions(arch=arch))


MODELS = "tiny-vit rb/Singh2023Revisiting_ViT-S-ConvStem timm:vit_tiny_patch16_224.augreg hf-hub:a/b w.pt x/w.safetensors".split()
TRANSFORMS = "none resize224x224 crop224 bicubic256crop224 bilinear256x300crop224".split()

TARGETS = (
    Target("attacks", lambda: st.tuples(attack_texts(), st.sampled_from(THREATS)), _attack),
    Target("threats", lambda: edited_texts([*THREATS, "linf:1/255,2/255,4/255", "l2:0.25,0.5"]), _threat),
    Target("data texts", data_texts, _data),
    Target("rows of a set", lambda: edited_texts(ROWS), _selected),
    Target("rows", lambda: st.tuples(edited_texts([r[1:-1] for r in ROWS]), st.integers(1, 30)), _rows),
    Target("transforms", lambda: edited_texts(TRANSFORMS), _transform),
    Target(
        "normalisers", lambda: edited_texts(["cifar10", "0.5,0.5,0.5/0.5,0.5,0.5", "0.5/0.25", "none"]), _normaliser
    ),
    Target("weights sources", lambda: edited_texts(SOURCES), _source),
    Target("model names", lambda: st.tuples(edited_texts(MODELS), st.one_of(st.none(), odd_texts())), _model_name),
)
