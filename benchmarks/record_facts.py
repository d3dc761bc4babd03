"""Writes what `vitattack bench --plan` knows without torch: run it after a data set was added."""

from __future__ import annotations

import json

from vitattack.bench.plan import record
from vitattack.bench.plan.facts import FILE


def main() -> None:
    content = {
        "schema": 1,
        "data": record.data_sets(),
    }
    lines = [
        f'  "{part}": {{\n'
        + ",\n".join(f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in content[part].items())
        + "\n  }"
        for part in ("data",)
    ]
    FILE.write_text('{\n  "schema": 1,\n' + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
