"""Processes of a run: the rank and device of this one, and collective operations between all of them.

A single process needs nothing but torch. Several are found and connected by Accelerate, the extra `vitattack[train]`.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from vitattack.core.errors import UsageError
from vitattack.core.processes import end_with_parent
from vitattack.core.runtime import resolve_device
from vitattack.train.data.batch import Shard

if TYPE_CHECKING:
    from accelerate import PartialState

# One of these is set in every process that a launcher started (torchrun, accelerate launch, MPI).
WORLD_SIZE_VARIABLES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")


@dataclass(frozen=True)
class Processes:
    """This process among `shard.world`, on its device; `state` is None for a process on its own."""

    shard: Shard
    device: torch.device
    state: PartialState | None = None

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and reports."""
        return self.shard.rank == 0

    @property
    def restarted(self) -> bool:
        """Whether torchrun started these processes again because one of them died."""
        return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"

    def mean_(self, tensors: Sequence[Tensor]) -> None:
        """Average tensors over the processes, in place and in one message.

        Called once per optimiser step in place of a DDP wrapper: objectives run several forwards before the backward,
        and hooks want the gradients between reduction and step.
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

    def sum(self, counts: Sequence[float]) -> list[float]:
        """Sum numbers over the processes."""
        if self.shard.world == 1:
            return list(counts)
        from accelerate.utils import reduce

        values = torch.tensor(counts, dtype=torch.float64 if self.device.type != "mps" else torch.float32)
        summed: Any = reduce(values.to(self.device), reduction="sum")
        return [float(v) for v in summed]

    def wait(self) -> None:
        """Wait until every process is here."""
        if self.state is not None:
            self.state.wait_for_everyone()


SINGLE_PROCESS = Processes(Shard(), torch.device("cpu"))


def join_processes(device: str = "auto") -> Processes:
    """Connect to the processes of the same launch, or stand alone if no launcher started this one."""
    own_device = resolve_device(device)
    sizes = [os.environ[name] for name in WORLD_SIZE_VARIABLES if name in os.environ]
    if not sizes:
        return Processes(Shard(), own_device)
    try:
        from accelerate import PartialState
    except ImportError as error:
        if all(size == "1" for size in sizes):
            return Processes(Shard(), own_device)
        raise UsageError("training in several processes needs accelerate: pip install 'vitattack[train]'") from error

    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun ends its workers, unless it is killed itself
        end_with_parent()
    # Accelerate looks for other processes on CPUs only when told to use CPUs.
    on_cpu = own_device.type == "cpu"
    _separate_store_after_restart("nccl" if torch.cuda.is_available() and not on_cpu else "gloo")
    state = PartialState(cpu=on_cpu)
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != state.num_processes:
        raise UsageError(
            f"{started} processes were started, and on {own_device.type} they cannot communicate: use --device cpu"
        )
    if started > 1:
        atexit.register(_leave_group)
    place = state.device if device == "auto" or started > 1 else own_device
    return Processes(Shard(state.process_index, state.num_processes), place, state)


def _leave_group() -> None:
    """Stop gloo's threads before the interpreter exits: one still running would abort a process that has finished."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _separate_store_after_restart(backend: str) -> None:
    """Give workers that torchrun restarted a store of their own.

    torchrun hands them the store of the dead workers, and they would wait at the addresses left in it (pytorch issue
    135712). The restart count tells the two apart; over several machines the counts may differ, so nothing is done.
    """
    env = os.environ.get
    restarts = env("TORCHELASTIC_RESTART_COUNT", "0")
    one_machine = env("WORLD_SIZE") == env("LOCAL_WORLD_SIZE")
    shares_store = env("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if restarts == "0" or not one_machine or not shares_store or dist.is_initialized():
        return
    stores: Any = dist  # torch does not export their types
    shared = stores.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    store = stores.PrefixStore(f"restart-{restarts}", shared)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(backend, store=store, rank=rank, world_size=world)
