"""Words of `analyze`: models, parameters and what is wrong with them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import ClassVar, Literal

import pytest

from vitattack.analyses.base import Analysis
from vitattack.analyses.words import bound, budget_of, check_models_count, outer_commas, split_words
from vitattack.core.errors import UsageError


@dataclass(frozen=True)
class Sample(Analysis):
    """A question of all kinds of parameters."""

    work: ClassVar[str] = "nowhere:nothing"
    paper: ClassVar[str] = "none"
    most: ClassVar[int | None] = 2

    steps: tuple[int, ...] = (1, 2)
    eps: float = 0.5
    attack: str = "pgd"
    judges: tuple[str, ...] = ()
    kind: Literal["one", "two"] = "one"
    signed: bool = False


def test_words_are_models_and_parameters() -> None:
    models, given = split_words(["tiny-vit", "steps=1,5", "./a=b.pt", "attack=pgd(steps=3)"])
    assert models == ["tiny-vit", "./a=b.pt"]
    assert given == {"steps": "1,5", "attack": "pgd(steps=3)"}
    with pytest.raises(UsageError, match="twice"):
        split_words(["a=1", "a=2"])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"steps": "5"}, {"steps": (5,)}),
        ({"steps": "1,2,5"}, {"steps": (1, 2, 5)}),
        ({"steps": [1, 5]}, {"steps": (1, 5)}),
        ({"steps": 7}, {"steps": (7,)}),
        ({"eps": "8/255"}, {"eps": 8 / 255}),
        ({"attack": "restarts(5, pgd)"}, {"attack": "restarts(5, pgd)"}),
        ({"judges": "tiny-vit,a(b, c)"}, {"judges": ("tiny-vit", "a(b, c)")}),
        ({"kind": "two", "signed": "true"}, {"kind": "two", "signed": True}),
    ],
)
def test_parameters_become_values(given: dict[str, object], expected: dict[str, object]) -> None:
    assert bound("sample", Sample, given) == Sample(**expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"stps": "5"}, "did you mean steps"),
        ({"steps": "a"}, "takes a whole number"),
        ({"steps": "1.5"}, "takes a whole number"),
        ({"eps": "import os"}, "cannot be read"),
        ({"eps": "1/0"}, "cannot be read"),
        ({"kind": "three"}, "three"),
        ({"signed": "5"}, "True or False"),
    ],
)
def test_wrong_parameters_are_refused_in_one_line(given: dict[str, object], why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        bound("sample", Sample, given)
    assert "\n" not in str(caught.value)


def test_budgets_and_numbers_of_models_are_checked() -> None:
    assert budget_of("sample", Sample, None) == ""
    with pytest.raises(UsageError, match="attacks nothing"):
        budget_of("sample", Sample, "linf:8/255")
    with pytest.raises(UsageError, match="takes 2 models, not 3"):
        check_models_count("sample", Sample, ["a", "b", "c"])
    with pytest.raises(UsageError, match="twice"):
        check_models_count("sample", Sample, ["a", "a"])


def test_outer_commas() -> None:
    assert outer_commas("a, b(c, d), (e, f)") == ["a", "b(c, d)", "(e, f)"]


def test_no_description_loads_torch() -> None:
    code = (
        "import sys\n"
        "from vitattack.report.analyses import analyses_table, analysis_description\n"
        "for each in analyses_table()[1]: analysis_description(each['name'])\n"
        "assert not {'torch', 'numpy', 'pandas', 'matplotlib'} & set(sys.modules), 'slow'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
