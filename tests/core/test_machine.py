"""The facts about the machine that stand beside every number."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from vitattack.core.machine import checkout_state

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository of one committed file, whose time git has not seen."""
    (tmp_path / "file").write_text("as committed")
    author = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    for words in (["init", "--quiet"], ["add", "file"], [*author, "commit", "--quiet", "--message", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    os.utime(tmp_path / "file", (1, 1))
    return tmp_path


def test_a_checkout_is_clean_until_a_file_changes(checkout: Path) -> None:
    before = checkout_state(checkout)
    (checkout / "file").write_text("changed")
    after = checkout_state(checkout)
    assert before is not None and after is not None
    assert (before["dirty"], after["dirty"]) == (False, True)
    assert before["commit"] == after["commit"] and len(before["commit"]) == 40


def test_the_index_of_a_checkout_is_not_rewritten(checkout: Path) -> None:
    """Git would lock it meanwhile, and a process that is killed then would leave the lock to its user."""
    index = (checkout / ".git" / "index").read_bytes()
    checkout_state(checkout)
    assert (checkout / ".git" / "index").read_bytes() == index


def test_a_folder_that_is_no_checkout_has_no_state(tmp_path: Path) -> None:
    assert checkout_state(tmp_path) is None
