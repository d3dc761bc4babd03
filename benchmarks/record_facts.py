"""Writes what `vitattack bench --plan` knows without torch: run it after an attack or a data set was added."""

from __future__ import annotations

import json

import vitattack.attacks  # noqa: F401  # they register themselves
from vitattack.bench.plan import record
from vitattack.bench.plan.facts import FILE


def main() -> None:
    content = {
        "schema": 1,
        "attacks": record.attacks(),
        "parts": record.parts(),
        "data": record.data_sets(),
    }
    lines = [
        f'  "{part}": {{\n'
        + ",\n".join(f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in content[part].items())
        + "\n  }"
        for part in ("attacks", "parts", "data")
    ]
    FILE.write_text('{\n  "schema": 1,\n' + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
