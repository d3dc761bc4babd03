"""A process that has imported torch and vitattack once, and forks a child for every command it is given.

Requests and answers are JSON lines. A request names words, folder, environment, files for both outputs, and patches to
apply in the child; the answers are the child's process id, and later its exit code. Every child leads a process group.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from typing import Any

IMPORTED = (
    "vitattack.cli.main",
    "vitattack.cli.eval",
    "vitattack.cli.bench",
    "vitattack.cli.train",
    "vitattack.cli.transfer",
    "vitattack.cli.models",
    "vitattack.cli.model_weights",
    "vitattack.attacks.auto.attack",
    "vitattack.attacks.aas.attack",
    "vitattack.attacks.black_box.square",
    "vitattack.bench.run.run_benchmark",
    "vitattack.data.local_sets",
    "vitattack.evaluation.evaluate",
    "vitattack.evaluation.transfer.study",
    "vitattack.models.zoo.load",
    "vitattack.models.zoo.user_entries",
    "vitattack.models.weights.fetch",
    "vitattack.report.evaluation",
    "vitattack.train.run_recipe",
    "timm",
    "pyarrow.parquet",
    "matplotlib",
    "requests",
)


def run(request: dict[str, Any]) -> None:
    """Become the command: called in the child, never returns."""
    code = 70
    try:
        os.setpgid(0, 0)
        os.chdir(request["folder"])
        os.environ.update(request["env"])
        for name, number in (("out", 1), ("err", 2)):
            handle = os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(handle, number)
            os.close(handle)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        sys.argv = ["vitattack", *request["words"]]
        from vitattack.cli.main import main

        from tests.faults.patches import applied

        with applied(request["patches"]):
            main()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:  # noqa: BLE001
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def answer(content: dict[str, Any]) -> None:
    os.write(1, json.dumps(content).encode() + b"\n")


def bury() -> None:
    """Report the children that have ended."""
    while True:
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if child == 0:
            return
        answer({"ended": child, "code": os.waitstatus_to_exitcode(status)})


def main() -> None:
    import importlib

    for name in IMPORTED:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    waking, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    answer({"ready": os.getpid()})
    rest = b""
    while True:
        ready, _, _ = select.select([0, waking], [], [])
        if waking in ready:
            os.read(waking, 4096)
            bury()
        if 0 in ready:
            piece = os.read(0, 1 << 16)
            if not piece:
                return
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                child = os.fork()
                if child == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    os.close(waking)
                    os.close(woken)
                    run(json.loads(line))
                answer({"started": child})


if __name__ == "__main__":
    main()
