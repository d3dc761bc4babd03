"""Writes what `vitattack bench --plan` knows without torch: run it after an attack, a data set or a model was added.

python benchmarks/record_facts.py            figures of models that are there already are kept
python benchmarks/record_facts.py --all      all of them are counted again
"""

from __future__ import annotations

import json
import sys

import vitattack.attacks  # noqa: F401  # they register themselves
from vitattack.bench.plan import record
from vitattack.bench.plan.facts import FILE
from vitattack.models.zoo.entries import _shipped


def main() -> None:
    known = json.loads(FILE.read_text())["models"] if FILE.is_file() and "--all" not in sys.argv else {}
    entries = _shipped()
    models = {name: figures for name, figures in known.items() if name in entries}
    for entry in entries.values():
        if entry.id not in models:
            models |= record.models([entry])
            print(entry.id, models.get(entry.id), file=sys.stderr)
    content = {
        "schema": 1,
        "attacks": record.attacks(),
        "parts": record.parts(),
        "data": record.data_sets(),
        "models": dict(sorted(models.items())),
    }
    lines = [
        f'  "{part}": {{\n'
        + ",\n".join(f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in content[part].items())
        + "\n  }"
        for part in ("attacks", "parts", "data", "models")
    ]
    FILE.write_text('{\n  "schema": 1,\n' + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
