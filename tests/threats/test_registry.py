"""The contract of threats, and a threat of another package, which is known wherever threats are named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from vitattack.core.errors import UsageError
from vitattack.threats.base import NOTHING, THREATS, Evidence, Threat, ThreatKind, examples, parse_threat, parse_threats

X = torch.rand(4, 3, 6, 6, generator=torch.Generator().manual_seed(0))
every_threat = pytest.mark.parametrize("kind", THREATS.in_order)


@every_threat
def test_its_text_names_it_again(kind: str) -> None:
    threat = parse_threat(THREATS[kind].example)
    assert threat.kind == kind and parse_threat(str(threat)) == threat
    assert parse_threats(str(threat)) == (threat,) and str(parse_threat(str(threat))) == str(threat)


@every_threat
def test_capitals_do_not_matter(kind: str) -> None:
    example = THREATS[kind].example
    head, colon, rest = example.partition(":")
    assert (
        parse_threat(head.capitalize() + colon + rest)
        == parse_threat(example)
        == parse_threats(head.upper() + colon + rest)[0]
    )


@every_threat
def test_the_clean_image_is_allowed_and_has_no_size(kind: str) -> None:
    threat = parse_threat(THREATS[kind].example)
    assert threat.allows(X, X).tolist() == [True] * 4 and threat.size(X, X).tolist() == [0.0] * 4
    assert threat.allows(X[:0], X[:0]).shape == threat.size(X[:0], X[:0]).shape == (0,)


@every_threat
def test_nothing_outside_the_box_and_no_nan_is_allowed(kind: str) -> None:
    threat = parse_threat(THREATS[kind].example)
    wild = X.clone()
    wild[0, 0, 0, 0], wild[1, 0, 0, 0], wild[2, 0, 0, 0] = 1.001, -0.001, float("nan")
    assert threat.allows(X, wild).tolist() == [False, False, False, True]


@every_threat
def test_its_size_grows_with_the_change(kind: str) -> None:
    threat = parse_threat(THREATS[kind].example)
    near, far = (X + 0.25 * (0.5 - X) * scale for scale in (0.1, 1.0))
    near[..., :3] = X[..., :3]  # fewer pixels, too, for threats that count them
    assert (threat.size(X, near) < threat.size(X, far)).all() and (threat.size(X, near) > 0).all()


@dataclass(frozen=True)
class Corner:
    """Any change inside a square in the corner."""

    side: int
    kind = "corner"

    def __str__(self) -> str:
        return f"corner:{self.side}px"

    def size(self, x: Tensor, x_adv: Tensor) -> Tensor:
        return (x_adv - x).flatten(1).abs().amax(1)

    def allows(self, x: Tensor, x_adv: Tensor, evidence: Evidence = NOTHING) -> Tensor:
        rest = torch.ones_like(x, dtype=torch.bool)
        rest[..., : self.side, : self.side] = False
        kept = ((x_adv == x) | ~rest).flatten(1).all(1)
        return kept & ((x_adv >= 0) & (x_adv <= 1)).flatten(1).all(1)


def parse_corner(text: str) -> Threat:
    if not text.removesuffix("px").isdecimal():
        raise UsageError(f"corner '{text}' has no size: write corner:8px")
    return Corner(int(text.removesuffix("px")))


@pytest.fixture
def corner() -> Iterator[None]:
    with THREATS.temporarily("corner", ThreatKind(parse_corner, "corner:8px", listed=False)):
        yield


@pytest.mark.usefixtures("corner")
def test_a_planted_threat_is_parsed_and_suggested() -> None:
    assert parse_threat("corner:4px") == Corner(4) and parse_threats("corner:4px") == (Corner(4),)
    assert "corner:8px" in examples()
    with pytest.raises(UsageError, match="unknown threat 'cornar': did you mean corner"):
        parse_threat("cornar:4px")
    with pytest.raises(UsageError, match="has no size: write corner:8px"):
        parse_threat("corner:wide")


@pytest.mark.usefixtures("corner")
def test_a_planted_threat_is_in_the_help_and_read_by_bench(tmp_path: Path) -> None:
    from vitattack.cli.main import cli

    from vitattack.bench.read.benchmark_file import read_benchmark

    done = CliRunner().invoke(cli, ["eval", "--help"])
    assert done.exit_code == 0 and "corner:8px" in done.output, done.output
    file = tmp_path / "corner.yaml"
    file.write_text(
        "schema: 1\ntitle: t\ndata: cifar10-demo\nthreats: [corner:4px]\nmodels: [tiny-vit]\nattacks: [auto]\n"
    )
    with pytest.raises(UsageError, match="auto is not defined for corner threats"):  # the threat is read, and named
        read_benchmark(str(file))


@pytest.mark.usefixtures("corner")
def test_an_attack_that_is_not_made_for_it_says_what_it_is_made_for() -> None:
    import vitattack

    with pytest.raises(UsageError, match="linf:8/255 or l2:0.5"):
        vitattack.attack("pgd", threat="corner:4px")
