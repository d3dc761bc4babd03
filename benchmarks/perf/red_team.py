"""Models of the red team by name, `redteam:NAME`, beside those of the zoo and files."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from vitattack.core.errors import UsageError
from vitattack.core.registry import did_you_mean
from vitattack.models.zoo.file_options import FileOptions

PREFIX = "redteam:"


def resolved(model: str, options: FileOptions) -> tuple[str, FileOptions]:
    """The file of a model of the red team, with its architecture; any other model as it is."""
    if not model.startswith(PREFIX):
        return model, options
    sys.path.append(str(Path(__file__).parents[1] / "redteam"))
    from rows import options_of, read_rows

    trained = {row.model: row for row in read_rows()}
    name = model.removeprefix(PREFIX)
    if name not in trained:
        raise UsageError(did_you_mean("model of the red team", name, trained))
    row = trained[name]
    # relative, since the digest by which stored runs are found holds the path as it was given
    return os.path.relpath(row.weights), options_of(row.family, row.classes)
