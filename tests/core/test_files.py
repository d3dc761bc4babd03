"""Writes that survive, locks between processes, and hashes that are remembered only where that is safe."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vitattack.core import file_hashes, files
from vitattack.core.errors import UsageError
from vitattack.core.file_hashes import FileState, remembered_sha256
from vitattack.core.locks import cache_lock
from vitattack.core.words import safe_file_name
from vitattack.records.record_file import RecordFile
from vitattack.records.sealed import Damaged, load
from vitattack.train.run_folder import locked_folder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITATTACK_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def settle(path: Path, seconds: float = 10) -> None:
    """As if the file had been written so long ago."""
    then = time.time() - seconds
    os.utime(path, (then, then))


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock ten seconds ahead, so that files of this test count as written some time ago: nothing sets a ctime back."""
    now = time.time_ns
    monkeypatch.setattr(file_hashes.time, "time_ns", lambda: now() + 10_000_000_000)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were read to be hashed."""
    seen: list[Path] = []

    def counted(path: Path) -> str:
        seen.append(path)
        return files.file_sha256(path)

    monkeypatch.setattr(file_hashes, "file_sha256", counted)
    return seen


@pytest.mark.usefixtures("later")
def test_an_unchanged_file_is_hashed_once(tmp_path: Path, hashed: list[Path]) -> None:
    path = tmp_path / "data.npz"
    path.write_bytes(b"one")
    assert [remembered_sha256(path) for _ in range(3)] == [sha(b"one")] * 3
    assert remembered_sha256(tmp_path / "." / "data.npz") == sha(b"one")
    assert len(hashed) == 1


def test_size_time_and_inode_each_bring_a_new_hash(tmp_path: Path, hashed: list[Path]) -> None:
    path = tmp_path / "data.npz"
    path.write_bytes(b"one")
    settle(path, 100)
    assert remembered_sha256(path) == sha(b"one")
    times = path.stat()
    path.write_bytes(b"four")  # another size, the same time
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert remembered_sha256(path) == sha(b"four")
    path.write_bytes(b"five")  # the same size, another time
    settle(path, 50)
    assert remembered_sha256(path) == sha(b"five")
    times, other = path.stat(), tmp_path / "other"
    other.write_bytes(b"nine")  # the same size and time, another file moved into its place
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.replace(path)
    assert remembered_sha256(path) == sha(b"nine")
    assert len(hashed) == 4


def test_a_file_just_written_is_hashed_again(tmp_path: Path, hashed: list[Path]) -> None:
    path = tmp_path / "data.npz"
    path.write_bytes(b"one")
    times = path.stat()
    assert remembered_sha256(path) == sha(b"one")
    with path.open("r+b") as stream:  # within the granularity of the timestamp
        stream.write(b"two")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert remembered_sha256(path) == sha(b"two") and len(hashed) == 2
    settle(path, -1000)  # a clock that is ahead
    assert remembered_sha256(path) == remembered_sha256(path) and len(hashed) == 4


def test_a_file_that_changes_while_it_is_read_leaves_no_note(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data.npz"
    path.write_bytes(b"one")
    settle(path)

    def slow(path: Path) -> str:
        digest = files.file_sha256(path)
        path.write_bytes(b"other")
        return digest

    monkeypatch.setattr(file_hashes, "file_sha256", slow)
    assert remembered_sha256(path) == sha(b"one")
    monkeypatch.setattr(file_hashes, "file_sha256", files.file_sha256)
    assert remembered_sha256(path) == sha(b"other")
    assert not list(home.rglob("*.json"))


@pytest.mark.usefixtures("later")
def test_broken_notes_and_a_cache_that_cannot_be_written_only_cost_time(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data.npz"
    path.write_bytes(b"one")
    settle(path)
    assert remembered_sha256(path) == sha(b"one")
    (note,) = home.rglob("*.json")
    for content in (
        "",
        "{}",
        '{"state": 1}',
        note.read_text().replace(sha(b"one"), "short"),
        note.read_text().replace(sha(b"one"), sha(b"two")),
    ):
        note.write_text(content)
        assert remembered_sha256(path) == sha(b"one")
    (tmp_path / "file").touch()
    monkeypatch.setenv("VITATTACK_HOME", str(tmp_path / "file" / "below"))
    assert remembered_sha256(path) == sha(b"one")
    with pytest.raises(FileNotFoundError):
        remembered_sha256(tmp_path / "nothing")


def test_processes_may_hash_at_once(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    path.write_bytes(bytes(1000))
    settle(path)
    code = (
        "import sys, pathlib; from vitattack.core.file_hashes import remembered_sha256\n"
        "assert 'torch' not in sys.modules\n"
        "print({remembered_sha256(pathlib.Path(sys.argv[1])) for _ in range(200)})"
    )
    running = [subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) for _ in range(3)]
    assert [process.communicate()[0].decode().strip() for process in running] == [f"{{'{sha(bytes(1000))}'}}"] * 3


def test_state_follows_links(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"one")
    link.symlink_to(path)
    assert FileState.of(link) == FileState.of(path)


def test_a_failed_replacement_keeps_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    files.write_atomically(path, "old")
    with pytest.raises(UsageError, match="cannot write .*: give another folder with --out"):
        files.write_atomically(tmp_path / "none" / "result.json", "new")
    with pytest.raises(KeyError), files.replacing(path) as beside:
        beside.write_text("half")
        raise KeyError
    assert path.read_text() == "old" and [each.name for each in tmp_path.iterdir() if each.is_file()] == [path.name]


@pytest.mark.timeout(20)
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert files.read_json(pipe) is None
    with pytest.raises(Damaged, match="not a file"):
        load(pipe)
    with pytest.raises(OSError, match="not a file"):
        files.append_line(pipe, "{}")
    with pytest.raises(UsageError, match=r"cannot write .*pipe.* \(not a file\)"):
        RecordFile(pipe)
    with (
        pytest.raises(UsageError, match="not a file"),
        locked_folder(_with_pipe(tmp_path / "run", ".lock"), owner=True),
    ):
        pass
    home = tmp_path / "home"
    monkeypatch.setenv("VITATTACK_HOME", str(home))
    _with_pipe(home / "locks", f"{safe_file_name('name')}.lock")
    with pytest.raises(UsageError, match="cannot write the cache"), cache_lock("name"):
        pass


def _with_pipe(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True)
    os.mkfifo(folder / name)
    return folder
