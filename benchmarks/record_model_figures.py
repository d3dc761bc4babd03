"""Record parameters and FLOPs of zoo models for `vitattack bench`: run it after a model was added.

python benchmarks/record_model_figures.py            count new models only
python benchmarks/record_model_figures.py --all      count all of them again
"""

from __future__ import annotations

import argparse
import sys

from vitattack.models.zoo.catalogue import shipped_entries
from vitattack.models.zoo.count_figures import count_figures
from vitattack.models.zoo.figures import FIGURES_FILE, recorded_figures, write_figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="count models again that are recorded already")
    given = parser.parse_args()
    recorded = recorded_figures() if FIGURES_FILE.is_file() and not given.all else {}
    shipped = shipped_entries()
    figures = {id: known for id, known in recorded.items() if id in shipped}
    for entry in shipped.values():
        if entry.arch is not None and entry.id not in figures:
            figures[entry.id] = count_figures(entry)
            print(entry.id, figures[entry.id], file=sys.stderr)
    write_figures(figures)


if __name__ == "__main__":
    main()
