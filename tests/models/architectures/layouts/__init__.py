"""Recorded layouts of checkpoint files: names, shapes and types of their tensors, and logits of a filled reference.

A line stands for the same tensor of several blocks: `blocks.[0-11].norm1.weight 384`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
Tensors = dict[str, tuple[tuple[int, ...], str]]


@dataclass(frozen=True)
class Layout:
    """Tensors of a file by name, and the first logits of `images` under `fill` of `tests.parity.deterministic_weights`."""

    entry: str
    logits: tuple[float, ...]
    tensors: Tensors

    def write(self, path: Path) -> None:
        groups: dict[tuple[str, str], list[int]] = {}
        for key, (shape, kind) in self.tensors.items():
            words = " ".join(["x".join(map(str, shape)) or "scalar"] + ([kind] if kind != "float32" else []))
            block = re.search(r"\bblocks?\.(\d+)\.", key)
            pattern = key if block is None else f"{key[: block.start(1)]}[]{key[block.end(1) :]}"
            groups.setdefault((pattern, words), []).append(-1 if block is None else int(block[1]))
        lines = [f"entry {self.entry}", "logits " + " ".join(f"{v:.7f}" for v in self.logits)]
        lines += [f"{pattern.replace('[]', f'[{_ranges(n)}]')} {words}" for (pattern, words), n in groups.items()]
        path.write_text("\n".join(lines) + "\n")


def read(path: Path) -> Layout:
    entry, logits, *lines = path.read_text().splitlines()
    tensors: Tensors = {}
    for line in lines:
        pattern, sizes, *kind = line.split()
        shape = () if sizes == "scalar" else tuple(map(int, sizes.split("x")))
        block = re.search(r"\[([\d,-]+)\]", pattern)
        for number in _numbers(block[1]) if block else (0,):
            key = pattern if block is None else pattern.replace(block[0], str(number))
            tensors[key] = (shape, kind[0] if kind else "float32")
    return Layout(entry.split()[1], tuple(map(float, logits.split()[1:])), tensors)


def path_of(entry: str) -> Path:
    return HERE / (entry.removeprefix("rb/").replace("/", "-") + ".txt")


def _ranges(numbers: list[int]) -> str:
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def _numbers(text: str) -> list[int]:
    spans = [part.split("-") for part in text.split(",")]
    return [n for span in spans for n in range(int(span[0]), int(span[-1]) + 1)]
