"""Files that other commands wrote with --json, shown beside the runs: diagnoses, transfer matrices, benchmarks, checks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from vitattack.core.errors import UsageError
from vitattack.core.files import no_pipe
from vitattack.models.attention.saturation import GAP_BINS, HIGHEST_GAP, LOWEST_GAP
from vitattack.records.stats import Accuracy, Gap
from vitattack.report.overview.curves import TransferMap

WRONG = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
LARGEST_FILE = 64 << 20  # bytes


@dataclass(frozen=True)
class GapHistogram:
    """How often a gap between the two highest scores of an attention row occurs in a block."""

    block: str
    counts: tuple[int, ...]
    verdict: str


@dataclass(frozen=True)
class SoftmaxDiagnosis:
    """The blocks of one model, as `diagnose-softmax --json` wrote them."""

    model: str
    data: str
    n: int
    verdict: str
    blocks: tuple[GapHistogram, ...]


@dataclass(frozen=True)
class ComparedCell:
    """A number of a benchmark beside the published one."""

    model: str
    attack: str
    threat: str
    measured: float
    n: int
    published: float
    source: str
    gap: Gap
    inside: bool


@dataclass(frozen=True)
class CheckOutcome:
    """What `check --json` found about the number of a model: each check, and whether planted examples were found."""

    model: str
    threat: str
    data: str
    verdict: str
    reasons: tuple[str, ...]
    certificate: str
    items: tuple[tuple[str, str, str, str], ...]  # name, question, figure, and pass, look or FAIL


@dataclass(frozen=True)
class Attachments:
    """The content of all files."""

    diagnoses: tuple[SoftmaxDiagnosis, ...] = ()
    transfers: tuple[tuple[str, TransferMap], ...] = ()  # with the text of the images
    compared: tuple[ComparedCell, ...] = ()
    checks: tuple[CheckOutcome, ...] = ()

    @property
    def edges(self) -> list[float]:
        """Edges of the bins of every histogram."""
        ratio = HIGHEST_GAP / LOWEST_GAP
        return [LOWEST_GAP * ratio ** (n / GAP_BINS) for n in range(GAP_BINS + 1)]


def read_attachments(paths: Iterable[Path]) -> Attachments:
    """Read files of any of the four kinds; raises UsageError for others."""
    found = [_read(path) for path in paths]
    return Attachments(
        tuple(chain.from_iterable(each.diagnoses for each in found)),
        tuple(chain.from_iterable(each.transfers for each in found)),
        tuple(chain.from_iterable(each.compared for each in found)),
        tuple(chain.from_iterable(each.checks for each in found)),
    )


def _read(path: Path) -> Attachments:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise ValueError("larger than 64 MB")
        content = json.loads(no_pipe(path).read_text())
        if "layers" in content:
            return Attachments(diagnoses=(_diagnosis(content),))
        if "certificate" in content:
            return Attachments(checks=(_check(content),))
        if "sources" in content:
            return Attachments(transfers=((str(content["data"]), _transfer(content)),))
        if "worst_case" in content and "cells" in content:
            return Attachments(compared=tuple(_compared(content)))
        raise ValueError("of another kind")
    except OSError as error:
        raise UsageError(
            f"cannot read '{path}' ({error.strerror}): name a store, a run or a file of results"
        ) from error
    except (*WRONG, RecursionError) as error:
        raise UsageError(
            f"'{path}' is not what check, diagnose-softmax, transfer or bench write with --json: "
            "name such a file, a store or a run"
        ) from error


def _diagnosis(content: Mapping[str, Any]) -> SoftmaxDiagnosis:
    blocks = []
    for layer in content["layers"]:
        counts = tuple(map(int, layer["histogram"]))
        if len(counts) != GAP_BINS or min(counts) < 0:
            raise ValueError("a histogram of other bins")
        name = str(layer["block"] or layer["name"]).removeprefix("model.")  # of the victim around it
        blocks.append(GapHistogram(name, counts, str(layer["verdict"])))
    model, data, verdict = (str(content[name]) for name in ("model", "data", "verdict"))
    return SoftmaxDiagnosis(model, data, int(content["n"]), verdict, tuple(blocks))


def _transfer(content: Mapping[str, Any]) -> TransferMap:
    sources, targets = tuple(map(str, content["sources"])), tuple(map(str, content["targets"]))
    cells = {(c["source"], c["target"]): _accuracy(c["accuracy"], int(c["n"])) for c in content["cells"]}
    rows = tuple(tuple(cells.get((source, target)) for target in targets) for source in sources)
    return TransferMap(str(content["attack"]), str(content["threat"]), sources, targets, rows)


def _accuracy(content: Mapping[str, Any], n: int) -> Accuracy:
    share, low, high = (float(content[name]) for name in ("accuracy", "low", "high"))
    return Accuracy(share, low, high, int(content["correct"]), n)


def _compared(content: Mapping[str, Any]) -> Iterable[ComparedCell]:
    for cell in (*content["cells"], *content["worst_case"]):
        if cell["measured"] is not None and cell["published"] is not None:
            low, high = float(cell["difference_low"]), float(cell["difference_high"])
            model, attack, threat = (str(cell[name] or "") for name in ("model", "attack", "threat"))
            yield ComparedCell(
                model,
                attack,
                threat,
                float(cell["measured"]),
                int(cell["n"]),
                float(cell["published"]),
                str(cell["source"] or ""),
                Gap(float(cell["difference"]), low, high),
                bool(cell["inside"]),
            )


def _check(content: Mapping[str, Any]) -> CheckOutcome:
    certificate, items = content["certificate"], []
    for item in content["checks"]:
        passed = item["passed"]
        word = "does not apply" if passed is None else "pass" if passed else "FAIL" if item["decisive"] else "look"
        items.append((str(item["name"]), str(item["asks"]), str(item["figure"]), word))
    shares = [f"{each['attack']} finds {each['found']} of {certificate['tested']}" for each in certificate["found"]]
    none = certificate["says_nothing"]
    model, threat, data, verdict = (str(content[name]) for name in ("model", "threat", "data", "verdict"))
    return CheckOutcome(
        model,
        threat,
        data,
        verdict,
        reasons=tuple(map(str, content["reasons"])),
        certificate=f"none, since {none}" if none else f"of the examples planted in this model {', '.join(shares)}",
        items=tuple(items),
    )
