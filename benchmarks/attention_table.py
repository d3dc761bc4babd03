"""The coverage table of attention: what is found in small models with random weights, against what was counted by hand.

    python benchmarks/attention_table.py > docs/evidence/attention-families.txt       all of it, 20 minutes on a core
    python benchmarks/attention_table.py --library vit-pytorch --only cait            a part

needs timm and torchvision, and for the rest `pip install transformers vit-pytorch x-transformers`; nothing is downloaded.
`right` means: all layers are found and no other softmax, s = 1 leaves the logits as they are to the bit, s = 0.5 changes them in
every layer by itself, gradients reach every scale, scales per head add up, those per sample stay with theirs, scores are observed
and agree with float64, and no hook and no function mode is left behind.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import sys
import warnings
from collections.abc import Iterator

import torch
from attention_rows.row import Row, check

LIBRARIES = {
    "timm": "timm",
    "torchvision": "torchvision",
    "transformers": "transformers",
    "vit-pytorch": "vit_pytorch",
    "x-transformers": "x_transformers",
}


def result(row: Row) -> tuple[bool, str]:
    """Whether a row is right, and what was found."""
    try:
        found = check(row)
    except AssertionError as error:
        return False, f"{str(error).splitlines()[0]}{'; ' + row.unseen if row.unseen else ''}"
    except Exception as error:  # noqa: BLE001
        return False, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return True, f"{len(found)} found{', no gradient: ' + row.no_gradient if row.no_gradient else ''}"


def rows_of(library: str) -> list[Row]:
    module = importlib.import_module(f"attention_rows.of_{LIBRARIES[library]}")
    return list(module.rows()) if library == "timm" else list(module.ROWS)


def left_out(library: str) -> Iterator[str]:
    module = importlib.import_module(f"attention_rows.of_{LIBRARIES[library]}")
    for name, why in vars(module).get("LEFT_OUT", ()):
        yield f"  left out  {name}: {why}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", action="append", choices=LIBRARIES, help="Only this one (may be given again).")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="Only models whose name holds it.")
    given = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    wrong = 0
    for library in given.library or LIBRARIES:
        try:
            version = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            print(f"{library} is not installed: its rows are missing", flush=True)
            continue
        if library == "transformers":
            importlib.import_module("transformers").logging.set_verbosity_error()
        print(f"{library} {version}, torch {torch.__version__}", flush=True)
        rows = [row for row in rows_of(library) if not given.only or any(text in row.name for text in given.only)]
        right = 0
        for row in rows:
            passed, what = result(row)
            right += passed
            expected = f"{row.layers} expected ({row.why})"
            print(f"  {'right' if passed else 'WRONG':6}  {row.name:56}{expected}; {what}", flush=True)
        wrong += len(rows) - right
        for line in left_out(library) if not given.only else ():
            print(line)
        print(f"  {right} of {len(rows)} rows are right ({100 * right / max(1, len(rows)):.1f} %)\n", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
