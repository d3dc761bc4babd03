"""Damage one stored file, run the command again, and demand the same numbers or a refusal in one line."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .kills import Bench, Reference, difference, whole
from .launcher import Ended, finish
from .outcome import numbers, other_cells, reason, refused, unclean
from .tally import Verdict
from .workshop import Case

# Kinds of files by what their path matches, so that the rare ones are damaged as often as the common ones.
KINDS: dict[str, str] = {
    "job.json": r"/job\.json$",
    "samples": r"/samples\.jsonl$",
    "shards": r"/samples\.shard[^/]*\.jsonl$",
    "events": r"/events[^/]*\.jsonl$",
    "result.json": r"/result\.json$",
    "learned.json": r"/learned\.json$",
    "probe.json": r"/probe\.json$",
    "index": r"/runs/\.index/",
    "cells": r"/cells\.jsonl$",
    "checkpoints": r"/checkpoints/",
    "recipe.json": r"/recipe\.json$",
    "training log": r"/(steps|epochs)\.(jsonl|csv)$",
    "trained weights": r"/(best|last)\.safetensors$",
    "cached weights": r"/home/weights/.*\.safetensors$",
    "weights notes": r"/home/weights/.*\.json$",
    "hash memo": r"/home/file-hashes/",
    "downloads": r"/home/downloads/",
    "lock files": r"/home/locks/|/\.lock$|\.lock$|\.lease",
    "pins": r"/weights\.lock\.json$",
    "other": r"",
}
RESULTS = frozenset({"samples", "shards", "events", "result.json", "learned.json", "checkpoints"})  # damaged more often
Change = Callable[[bytes, random.Random], bytes]


def flip_bit(content: bytes, luck: random.Random) -> bytes:
    at = luck.randrange(len(content))
    return content[:at] + bytes([content[at] ^ (1 << luck.randrange(8))]) + content[at + 1 :]


def overwrite(content: bytes, luck: random.Random) -> bytes:
    at = luck.randrange(len(content))
    return content[:at] + luck.randbytes(luck.randint(1, 8)) + content[at + 8 :]


def other_digit(content: bytes, luck: random.Random) -> bytes:
    """Another number: what no parser can notice."""
    places = [found.start() for found in re.finditer(rb"\d", content)]
    if not places:
        return overwrite(content, luck)
    at = luck.choice(places)
    return content[:at] + luck.choice(b"0123456789".replace(content[at : at + 1], b"")).to_bytes() + content[at + 1 :]


def other_word(content: bytes, luck: random.Random) -> bytes:
    """Another status, or another truth: valid JSON with another meaning."""
    swaps = [(b"robust", b"fooled"), (b"fooled", b"robust"), (b"true", b"false"), (b"false", b"true"), (b"null", b"1")]
    swaps = [(a, b) for a, b in swaps if a in content]
    if not swaps:
        return other_digit(content, luck)
    word, other = luck.choice(swaps)
    at = luck.choice([found.start() for found in re.finditer(word, content)])
    return content[:at] + other + content[at + len(word) :]


def truncate(content: bytes, luck: random.Random) -> bytes:
    return content[: luck.randrange(len(content))]


def insert(content: bytes, luck: random.Random) -> bytes:
    at = luck.randrange(len(content) + 1)
    return (
        content[:at] + luck.choice([luck.randbytes(3), b"\n", b" ", b"{}", b"0", b"\n{}\n", b"\x1b[2J"]) + content[at:]
    )


def _lines(content: bytes) -> list[bytes]:
    return content.splitlines(keepends=True)


def duplicate_line(content: bytes, luck: random.Random) -> bytes:
    lines = _lines(content)
    at = luck.randrange(len(lines))
    return b"".join([*lines[: at + 1], lines[at], *lines[at + 1 :]])


def swap_lines(content: bytes, luck: random.Random) -> bytes:
    lines = _lines(content)
    one, other = luck.randrange(len(lines)), luck.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    return b"".join(lines)


def drop_line(content: bytes, luck: random.Random) -> bytes:
    lines = _lines(content)
    del lines[luck.randrange(len(lines))]
    return b"".join(lines)


def zero_page(content: bytes, luck: random.Random) -> bytes:
    size = luck.choice([64, 512, 4096])
    at = luck.randrange(0, len(content), size) if len(content) > size else 0
    return content[:at] + bytes(min(size, len(content) - at)) + content[at + size :]


def empty(content: bytes, luck: random.Random) -> bytes:
    return b""


def deep(content: bytes, luck: random.Random) -> bytes:
    """JSON nested too deep for a parser that recurses, as the file or as one of its lines."""
    nested = luck.choice([b"[", b'{"a":']) * 100_000
    lines = _lines(content)
    at = luck.randrange(len(lines) + 1)
    return nested if luck.random() < 0.5 else b"".join([*lines[:at], nested + b"\n", *lines[at:]])


def bad_utf8(content: bytes, luck: random.Random) -> bytes:
    at = luck.randrange(len(content))
    return content[:at] + b"\xff\xfe" + content[at + 1 :]


def wrong_type(content: bytes, luck: random.Random) -> bytes:
    """A value of another type somewhere in the JSON, of the whole file or of one line."""
    try:
        return json.dumps(_retyped(json.loads(content), luck)).encode() + b"\n"
    except ValueError:
        pass
    lines = _lines(content)
    at = luck.randrange(len(lines))
    try:
        lines[at] = json.dumps(_retyped(json.loads(lines[at]), luck), separators=(",", ":")).encode() + b"\n"
    except ValueError:
        return overwrite(content, luck)
    return b"".join(lines)


def _retyped(content: Any, luck: random.Random) -> Any:
    if isinstance(content, dict) and content and luck.random() < 0.9:
        key = luck.choice(sorted(content))
        return {**content, key: _retyped(content[key], luck)}
    if isinstance(content, list) and content and luck.random() < 0.7:
        at = luck.randrange(len(content))
        return [*content[:at], _retyped(content[at], luck), *content[at + 1 :]]
    values = [None, True, -1, 1e308, 10**400, "", "x", [], {}, [[]], {"a": 1}, float("nan")]
    return luck.choice([value for value in values if type(value) is not type(content)])


CHANGES: tuple[Change, ...] = (
    flip_bit,
    flip_bit,
    overwrite,
    other_digit,
    other_digit,
    other_word,
    truncate,
    truncate,
    insert,
    duplicate_line,
    swap_lines,
    drop_line,
    zero_page,
    empty,
    deep,
    bad_utf8,
    wrong_type,
    wrong_type,
)


def _removed(path: Path) -> None:
    path.unlink()


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(path: Path) -> None:
    """A symbolic link to itself."""
    path.unlink()
    path.symlink_to(path.name)


REPLACEMENTS = {"a folder": _folder, "a link to itself": _link, "deleted": _removed, "pipe": _pipe}


def files_by_kind(folder: Path, inputs: str | None = None) -> dict[str, list[Path]]:
    """The stored files of a run by kind, or the files it reads as input."""
    kinds: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        text = "/" + str(path.relative_to(folder))
        wanted = path.name != "models.yaml" if inputs is None else re.search(inputs, text)
        if wanted and path.is_file() and not path.is_symlink():
            kind = next(kind for kind, pattern in KINDS.items() if re.search(pattern, text))
            kinds.setdefault(kind, []).append(path)
    return kinds


def stopped(bench: Bench, case: Case, folder: Path, luck: random.Random) -> None:
    """Run part of a case: all but its last command, and that one up to a change of files in its second half."""
    reference = bench.reference(case)
    for words in case.commands[:-1]:
        bench.run(case, words, folder)
    at = luck.randint(reference.changes // 3, max(1, reference.changes - 3))
    patch = {"die_at": {"n": at, "signal": int(signal.SIGKILL), "below": str(folder)}}
    bench.run(case, case.commands[-1], folder, patch)


def damage(bench: Bench, case: Case, name: str, luck: random.Random, kind: str | None = None) -> Verdict:
    """One trial: a file of a finished or stopped run is damaged, and the last command is run again."""
    reference, verdict = bench.reference(case), Verdict()
    folder = bench.workshop.place(bench.slot(case), case)
    finished = luck.random() < 0.6 or case.inputs is not None
    if finished:
        shutil.rmtree(folder)
        shutil.copytree(reference.folder, folder, copy_function=shutil.copy2)
    else:
        stopped(bench, case, folder, luck)
    kinds = files_by_kind(folder, case.inputs)
    if not kinds:
        return verdict  # stopped before anything was stored
    if kind not in kinds:
        names = sorted(kinds)
        kind = luck.choices(names, [3 if name in RESULTS else 1 for name in names])[0]
    path = luck.choice(kinds[kind])
    before = path.read_bytes()
    if luck.random() < 0.15 or not before:
        words = sorted(REPLACEMENTS)
        word = luck.choice(words if case.inputs is None else words[:-1])  # a pipe is a fine input
        REPLACEMENTS[word](path)
    else:
        change = luck.choice(CHANGES)
        word = change.__name__
        after = change(before, luck)
        if after == before:
            return verdict
        path.write_bytes(after)
    state = "finished" if finished else "stopped"
    verdict.injected += 1
    verdict.notes.append(f"{word} in {path.relative_to(folder)} ({kind}) of a {state} run of {case.name}")
    counts = kind == "samples" or (kind == "shards" and not finished)  # those of a finished run are merged
    dropped = counts and _dropped(path, before, finished=finished)
    ended = finish(bench.start(case, case.commands[-1], folder))
    _judge(verdict, reference, folder, ended, case)
    if not ended.code and dropped and not ended.err.strip():
        verdict.silent += 1
        verdict.notes.append("stored records were dropped without a word")
    if ended.code and not verdict.failed and case.inputs is None:  # the way out that every message names
        again = bench.run(case, (*case.commands[-1], *_fresh(case)), folder)
        _judge(verdict, reference, folder, again, case)
        verdict.refused, verdict.survived = 1, 0
    if verdict.failed:
        folder.rename(bench.workshop.place(name) / "failed")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return verdict


def _fresh(case: Case) -> tuple[str, ...]:
    return () if case.commands[-1][0] == "models" or case.inputs else ("--fresh",)


def _judge(verdict: Verdict, reference: Reference, folder: Path, ended: Ended, case: Case) -> None:
    complaint = unclean(ended)
    if complaint or (ended.code and not refused(ended)):
        verdict.unclean += 1
        verdict.notes.append(complaint or f"ended with {ended.code}: {ended.err[-300:]}")
    elif ended.code:
        verdict.notes.append(f"refused: {reason(ended)}")
        for name in other_cells(ended, reference.outcome.numbers):
            verdict.wrong += 1
            verdict.notes.append(f"other numbers of {name}")
    elif case.inputs is None and (found := numbers(ended.out)) != reference.outcome.numbers:
        if not (isinstance(found, dict) and found.get("finished") is False):  # a shard that waits for others
            verdict.wrong += 1
            verdict.notes.append(f"other numbers: {difference(reference.outcome.numbers, found)}; {ended.err[-300:]}")
    else:
        verdict.survived = 1


def _dropped(path: Path, before: bytes, *, finished: bool) -> bool:
    """Whether damage took complete lines of a record file; a stopped run may end anywhere, so nobody can miss its end."""
    damaged = path.read_bytes() if path.is_file() else b""
    if not finished and before.startswith(damaged):
        return False
    return whole(damaged, before) < whole(before, before)
