"""The processes of a run: who this one is, where it computes, and how they agree. Accelerate starts and finds them."""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from vitattack.core.errors import UsageError
from vitattack.train.data.batch import Shard


@dataclass(frozen=True)
class Team:
    """One process among `world`, on its device."""

    shard: Shard
    device: torch.device
    _state: Any = None

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes and speaks."""
        return self.shard.rank == 0

    def mean_(self, tensors: Sequence[Tensor]) -> None:
        """Averages tensors over the processes, in place and in one message.

        Done once per optimiser step instead of by a wrapper around the model: objectives ask the model several times
        before they look back, and hooks want the gradients between the sum and the step.
        """
        if self.shard.world == 1 or not tensors:
            return
        from accelerate.utils import reduce

        flat: Any = reduce(torch.cat([t.detach().reshape(-1).float() for t in tensors]), reduction="mean")
        at = 0
        with torch.no_grad():
            for tensor in tensors:
                tensor.copy_(flat[at : at + tensor.numel()].view_as(tensor))
                at += tensor.numel()

    def total(self, counts: Sequence[float]) -> list[float]:
        """Sums numbers over the processes."""
        if self.shard.world == 1:
            return list(counts)
        from accelerate.utils import reduce

        values = torch.tensor(counts, dtype=torch.float64 if self.device.type != "mps" else torch.float32)
        summed: Any = reduce(values.to(self.device), reduction="sum")
        return [float(v) for v in summed]

    def wait(self) -> None:
        if self._state is not None:
            self._state.wait_for_everyone()

    @property
    def again(self) -> bool:
        """Whether torchrun started these processes anew because one of them died."""
        return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def team(device: str = "auto") -> Team:
    """This process as `torchrun` or `accelerate launch` started it, or alone."""
    try:
        from accelerate import PartialState
    except ImportError as error:
        raise UsageError("training needs accelerate: pip install 'vitattack[train]'") from error
    from vitattack.core.runtime import resolve_device

    asked = resolve_device(device)
    # accelerate looks for other processes on CPUs only if it is told that this is about CPUs
    on_cpu = asked.type == "cpu"
    _own_store("nccl" if torch.cuda.is_available() and not on_cpu else "gloo")
    state = PartialState(cpu=on_cpu)
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != state.num_processes:
        raise UsageError(f"{started} processes were started, and on {asked.type} they cannot agree: use --device cpu")
    place = state.device if device == "auto" or started > 1 else asked
    if started > 1:
        atexit.register(_leave)
    return Team(Shard(state.process_index, state.num_processes), place, state)


def _leave() -> None:
    """Ends what gloo's threads do before the interpreter ends: one still running then aborts a process that has finished."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _own_store(backend: str) -> None:
    """A process group of their own for workers that torchrun started again.

    torchrun gives them the store of those that died, and they would wait at the addresses left in it (pytorch issue
    135712). The count of restarts tells the two apart; on several machines it may differ, and there is no way round.
    """
    said = os.environ.get
    again = said("TORCHELASTIC_RESTART_COUNT", "0")
    alone = said("WORLD_SIZE") == said("LOCAL_WORLD_SIZE")
    if again == "0" or not alone or said("TORCHELASTIC_USE_AGENT_STORE") != "True" or dist.is_initialized():
        return
    stores: Any = dist  # torch does not export their types
    shared = stores.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    store = stores.PrefixStore(f"restart-{again}", shared)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(backend, store=store, rank=rank, world_size=world)


ALONE = Team(Shard(), torch.device("cpu"))
