"""Ray executor: the same bytes as in this process, whichever worker, node or driver dies."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.bench.run.test_run_benchmark import CELLS, SETTINGS, Steps, lines, run
from tests.models.weights.hosts import host, slowly
from vitattack.bench.executors.executor import BenchProgress, SerialExecutor
from vitattack.bench.executors.folder_sync import FilePiece, OutOfStep, StoreFolder, WorkerFolder
from vitattack.bench.executors.ray_cluster import RayExecutor, environment
from vitattack.bench.run.results import CellResult
from vitattack.bench.tasks import Task
from vitattack.core.assets import EMBEDDED
from vitattack.core.errors import UsageError, VitattackError
from vitattack.core.locks import Locked
from vitattack.records.sealed import load, sealed_text

ray = pytest.importorskip("ray")


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # else Ray writes a token into the home of whoever runs the tests
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    return lines(run(tmp_path_factory.mktemp("serial"), SerialExecutor()))


def test_two_local_workers_stream_the_same_records(tmp_path: Path, serial: list[bytes]) -> None:
    steps = Steps()
    found = run(tmp_path, RayExecutor(jobs=2), progress=steps)
    assert lines(found) == serial and not steps.notes
    assert all(each.content["run"] == str(each.folder) for each in found)
    assert {name for name, done, total in steps.moves if done == total} == {cell.name for cell in CELLS}
    assert not ray.is_initialized()


LONG = tuple(replace(cell, attack="pgd(steps=30)", data=f"cifar10-demo[:{n}]") for cell in CELLS[::2] for n in (64, 96))


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    return lines(run(tmp_path_factory.mktemp("long"), SerialExecutor(), LONG))


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Three nodes with a core each, and a driver that is connected to none of them."""
    from ray.cluster_utils import Cluster

    settings = {"num_cpus": 1, "object_store_memory": 100 << 20}
    made = Cluster(initialize_head=True, head_node_args={**settings, "include_dashboard": False})
    try:
        for _ in range(2):
            made.add_node(**settings)
        made.wait_for_nodes()
        yield made
    finally:
        made.shutdown()


def busy(cluster: Any) -> dict[int, Any]:
    """The workers that run a task, by process, with their nodes."""
    found = {}
    nodes = {node.all_processes["raylet"][0].process.pid: node for node in cluster.list_all_nodes()}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent in nodes and b"ray::" in (title := (folder / "cmdline").read_bytes()) and b"linf" in title:
                found[int(folder.name)] = nodes[parent]
    return found


def noted(each: CellResult) -> int:
    """Of how many images the cost was noted: a batch is noted right after it is stored."""
    assert each.folder is not None
    notes = [line for path in each.folder.glob("events*") for line in path.read_text().splitlines()]
    return sum(json.loads(line).get("n", 0) for line in notes)


def once(found: Sequence[CellResult]) -> bool:
    """Whether every stored batch was made once."""
    return all(noted(each) == each.n for each in found)


@pytest.mark.slow
@pytest.mark.parametrize("writers", ["driver", "workers"])
def test_three_nodes_make_the_same_records(
    tmp_path: Path, cluster: Any, serial: list[bytes], writers: Literal["driver", "workers"]
) -> None:
    steps = Steps()
    found = run(tmp_path, RayExecutor(cluster.address, writers=writers), shards=2, progress=steps)
    assert lines(found) == serial and not steps.notes and once(found)


@pytest.mark.slow
@pytest.mark.parametrize("writers", ["driver", "workers"])
def test_a_killed_worker_and_a_lost_node_cost_nothing(
    tmp_path: Path, cluster: Any, long: list[bytes], writers: Literal["driver", "workers"]
) -> None:
    class Breaking(Steps):
        removed = False

        def moved(self, task: Task, done: int, total: int) -> None:
            super().moved(task, done, total)
            running = busy(cluster)
            if len(self.moves) == 8:
                os.kill(next(iter(running)), signal.SIGKILL)
            elsewhere = [node for node in running.values() if node is not cluster.head_node]
            if len(self.moves) >= 16 and elsewhere and not self.removed and 2 * done < total:
                self.removed = True
                cluster.remove_node(elsewhere[0], allow_graceful=False)

    steps = Breaking()
    found = run(tmp_path, RayExecutor(cluster.address, writers=writers), LONG, shards=2, progress=steps)
    assert lines(found) == long and once(found)
    assert len(steps.notes) >= 2 and all("lost" in note for note in steps.notes)


@pytest.mark.slow
@pytest.mark.parametrize("writers", ["driver", "workers"])
def test_a_killed_driver_goes_on_where_it_was(
    tmp_path: Path, cluster: Any, long: list[bytes], writers: Literal["driver", "workers"]
) -> None:
    script = f"""
from pathlib import Path
from tests.bench.executors.test_ray_cluster import LONG, RayExecutor, run
run(Path({str(tmp_path)!r}), RayExecutor({cluster.address!r}, writers={writers!r}), LONG)
"""
    with subprocess.Popen([sys.executable, "-c", script]) as driver:
        deadline = time.monotonic() + 120
        while stored(tmp_path) < 12:
            assert driver.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        driver.kill()
    before = stored(tmp_path)
    assert 12 <= before < len(long)
    steps = Steps()
    found = run(tmp_path, RayExecutor(cluster.address, writers=writers), LONG, progress=steps)
    assert lines(found) == long and not steps.notes
    # none was made twice; between a batch and its note a kill may fall, once per cell
    assert all(0 <= (each.n or 0) - noted(each) <= SETTINGS.batch_size for each in found)
    going_on: dict[tuple[str, int], int] = {}
    for name, done, total in steps.moves:  # two cells of a name differ in their number of images
        going_on.setdefault((name, total), done)
    assert sum(going_on.values()) >= before - sum(each.n or 0 for each in found if each.from_store)


@pytest.mark.slow
def test_weights_are_fetched_once_by_each_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every node has a cache of its own, which wins over what the driver says."""
    from ray.cluster_utils import Cluster

    content = (EMBEDDED / "tiny-vit.safetensors").read_bytes()
    monkeypatch.setenv("VITATTACK_HOME", str(tmp_path / "driver"))
    with host() as server:
        server.files["/net.safetensors"] = content
        server.faults["/net.safetensors"] = [slowly(1.0)] * 4
        entry = (
            f"{{id: own/net, summary: mine, arch: 'small:tiny_vit_32', num_classes: 10, input: 32, dataset: cifar10, "
            f"normalize: null, weights: {{from: ['{server.url}/net.safetensors'], size: {len(content)}, "
            f"sha256: {hashlib.sha256(content).hexdigest()}}}}}"
        )
        homes = [tmp_path / "one", tmp_path / "two"]
        for home in homes:
            home.mkdir()
            (home / "models.yaml").write_text(f"schema: 1\nmodels:\n  - {entry}\n")
        settings = {"num_cpus": 2, "object_store_memory": 100 << 20}
        made = Cluster(
            initialize_head=True,
            head_node_args={**settings, "include_dashboard": False, "env_vars": {"VITATTACK_HOME": str(homes[0])}},
        )
        try:
            made.add_node(**settings, env_vars={"VITATTACK_HOME": str(homes[1])})
            cells = [replace(CELLS[0], model="own/net", seed=seed) for seed in range(6)]
            found = run(tmp_path / "store", RayExecutor(made.address), cells)
        finally:
            made.shutdown()
        assert {each.status for each in found} == {"ok"}, [each.error for each in found]
        used = [home for home in homes if any((home / "weights").glob("*"))]
        assert used and len(server.gets("/net.safetensors")) == len(used)
        assert not (tmp_path / "driver").exists()


def stored(store: Path) -> int:
    return sum(path.read_bytes().count(b'{"index":') for path in store.glob("*/samples.jsonl"))


def test_what_a_user_gets_wrong_is_said_before_ray_starts(tmp_path: Path) -> None:
    task = Task(CELLS[0], "fgsm", 1, str(tmp_path), device="cuda:1")
    with pytest.raises(UsageError, match="Ray chooses the GPU"):
        next(RayExecutor().run([task], BenchProgress()))
    with pytest.raises(UsageError, match="--jobs is for this machine"):
        next(RayExecutor("auto", jobs=2).run([replace(task, device="cpu")], BenchProgress()))


def test_workers_take_over_the_variables_that_matter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITATTACK_HOME", "cache")
    monkeypatch.setenv("VITATTACK_OFFLINE", "1")
    monkeypatch.setenv("HF_TOKEN", "secret")
    found = environment()
    assert found["VITATTACK_HOME"] == str(tmp_path / "cache") and found["VITATTACK_OFFLINE"] == "1"
    assert "HF_TOKEN" not in found


def test_a_folder_grows_piece_by_piece_and_refuses_a_gap(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "store" / "job"
    store_folder = StoreFolder(here, (0, 1))
    (here / "samples.jsonl").write_bytes(b"one\ntorn")
    worker_folder = WorkerFolder(there, here, (0, 1), store_folder.files())
    assert worker_folder.changes() == []
    (there / "samples.jsonl").write_bytes(b"one\ntwo\n")
    (there / "result.json").write_text(sealed_text({"run": "elsewhere"}))
    for piece in worker_folder.changes():
        store_folder.apply(piece)
    assert (here / "samples.jsonl").read_bytes() == b"one\ntwo\n"
    assert (load(here / "result.json") or {})["run"] == str(here)
    assert store_folder.matches(
        {name: hashlib.sha256(content).hexdigest() for name, content in worker_folder.sent.items()}
    )
    with pytest.raises(OutOfStep):
        store_folder.apply(FilePiece("samples.jsonl", 99, b"four\n"))
    with pytest.raises(VitattackError, match="another version"):
        store_folder.apply(FilePiece("../samples.jsonl", 0, b""))
    with pytest.raises(Locked):
        StoreFolder(here, (0, 1))
    store_folder.close()
    StoreFolder(here, (0, 1), fresh=True).close()
    assert (here / "samples.jsonl").read_bytes() == b"" and not (here / "result.json").exists()
