"""The matrices of a transfer study: accuracy, drop and success, sources down and targets across."""

from __future__ import annotations

from collections.abc import Callable

from vitattack.core.percent import percent
from vitattack.core.table import Table
from vitattack.evaluation.transfer.success_matrix import TransferCell, TransferMatrix
from vitattack.records.stats import Accuracy


def tables(matrix: TransferMatrix) -> list[Table]:
    """Three matrices in percent, each with its n; a star marks cells whose candidates were resized."""
    columns = ("crafted on", *matrix.targets)
    clean = ("clean", *(percent(matrix.clean[target].accuracy) for target in matrix.targets))
    accuracy = [clean, *_rows(matrix, lambda cell: percent(cell.accuracy.accuracy))]
    lost = _rows(matrix, lambda cell: percent(cell.drop.accuracy))
    success = _rows(matrix, lambda cell: f"{_share(cell.success)} of {cell.success.n}")
    outside = [name for name in matrix.sources if name not in matrix.targets]
    notes = [f"{name} on itself: {percent(matrix.white_box[name].robust.accuracy)}" for name in outside]
    notes += ["* input sizes differ: changes were resized"] if any(cell.resized for cell in matrix.cells) else []
    return [
        Table(f"accuracy on the target | {_head(matrix)}", columns, accuracy, notes),
        Table(f"drop from the clean accuracy of the target | n = {matrix.n}", columns, lost),
        Table(
            "success among images that source and target get right clean",
            columns,
            success,
            [f"doubt: {doubt}" for doubt in matrix.doubts],
        ),
    ]


def numbers(matrix: TransferMatrix) -> Table:
    """A row per cell, shares in [0,1] with their intervals: the form for other programs."""
    measures = ("accuracy", "drop", "success")
    spread = [name + end for name in measures for end in ("", "_low", "_high")]
    rows = []
    for cell in matrix.cells:
        shares = [(s.accuracy if s.n else None, s.low, s.high) for s in (cell.accuracy, cell.drop, cell.success)]
        values = (matrix.clean[cell.target].accuracy, *(value for share in shares for value in share))
        figures = ["" if value is None else f"{value:.6g}" for value in values]
        rows.append((cell.source, cell.target, str(matrix.n), str(cell.success.n), str(int(cell.resized)), *figures))
    columns = ("source", "target", "n", "n_joint", "resized", "clean", *spread)
    return Table(_head(matrix), columns, rows, [f"doubt: {doubt}" for doubt in matrix.doubts], left=2)


def _head(matrix: TransferMatrix) -> str:
    job = matrix.first.job
    return f"{job.attack} | {job.threat} | {matrix.data} | n = {matrix.n} | seed {job.seed}"


def _rows(matrix: TransferMatrix, show: Callable[[TransferCell], str]) -> list[tuple[str, ...]]:
    def shown(source: str, target: str) -> str:
        cell = matrix.cell(source, target)
        return show(cell) + ("*" if cell.resized else "")

    return [(source, *(shown(source, target) for target in matrix.targets)) for source in matrix.sources]


def _share(success: Accuracy) -> str:
    return percent(success.accuracy) if success.n else "-"
