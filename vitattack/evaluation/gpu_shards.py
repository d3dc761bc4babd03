"""A run on several GPUs: a shard of the images for each, in a process of its own; this process has the first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

from vitattack.core.errors import VitattackError
from vitattack.core.new_process import Call, Died
from vitattack.core.progress import current_listener, stage
from vitattack.evaluation.setup import Setup
from vitattack.records.result import Evaluation

MAX_ATTEMPTS = 4  # at a shard whose process dies


def over_gpus(
    gpus: Sequence[str], setup: Setup, run: Callable[[Setup], Evaluation], function: str, arguments: Mapping[str, Any]
) -> Evaluation:
    """Evaluate shard 0 here by `run` and the others by `function` in new processes, then merge them.

    `gpus` are values of CUDA_VISIBLE_DEVICES, the first of which this process uses already.
    """
    shards = [replace(setup, shard=(number, len(gpus)), jobs=1) for number in range(len(gpus))]
    current_listener().note(f"{len(gpus)} GPUs: each attacks a part of the images, in a process of its own")
    with _Others(gpus, shards, function, arguments) as others:
        first = run(shards[0])
        if first.finished:  # it was stored, or the others were quicker
            return first
        with stage("waiting for the other GPUs"):
            others.wait()
    merged = run(replace(shards[0], fresh=False))
    return replace(merged, inputs=first.inputs)


class _Others:
    """The processes of all shards but the first."""

    def __init__(
        self, gpus: Sequence[str], shards: Sequence[Setup], function: str, arguments: Mapping[str, Any]
    ) -> None:
        self._gpus, self._shards, self._function, self._arguments = gpus, shards, function, arguments
        self._calls: dict[int, Call] = {}

    def __enter__(self) -> _Others:
        for number in range(1, len(self._shards)):
            self._start(number, self._shards[number])
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for call in self._calls.values():
            call.kill()

    def _start(self, number: int, setup: Setup) -> None:
        place = {"CUDA_VISIBLE_DEVICES": self._gpus[number]}
        self._calls[number] = Call(self._function, {**self._arguments, "setup": setup}, place)

    def wait(self) -> None:
        """Wait for all; a shard whose process died goes on in another, a few times."""
        for number in range(1, len(self._shards)):
            for attempt in range(1, MAX_ATTEMPTS + 1):
                try:
                    self._calls[number].result()
                    break
                except Died as died:
                    if attempt == MAX_ATTEMPTS:
                        raise VitattackError(
                            f"the process on GPU {self._gpus[number]} ended with {died}, {MAX_ATTEMPTS} times: "
                            "use a smaller --batch-size if it ran out of memory, or --jobs 1"
                        ) from None
                    current_listener().note(
                        f"the process on GPU {self._gpus[number]} ended with {died}: starting another"
                    )
                    self._calls[number].kill()
                    self._start(number, replace(self._shards[number], fresh=False))
