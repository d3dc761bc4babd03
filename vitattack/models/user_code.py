"""Models of a user's own code: `FILE.py:NAME` or `MODULE:NAME`, a callable that returns a module, or a module."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

from vitattack.core.errors import UsageError, first_line
from vitattack.core.progress import current_listener
from vitattack.core.registry import did_you_mean
from vitattack.core.words import names_a_file, printable

if TYPE_CHECKING:
    from torch import nn

LARGEST_FILE = 4 << 20  # bytes of a Python file
_FORM = re.compile(r"(?P<place>.+\.py|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")
RESERVED = ("timm", "hf", "embedded", "file", "github", "gdrive", "nextcloud", "https", "http", "folder", "npz")


@dataclass(frozen=True)
class UserCode:
    """The place and the name of a callable."""

    place: str
    name: str

    @property
    def text(self) -> str:
        return f"{self.place}:{self.name}"

    @property
    def is_file(self) -> bool:
        return self.place.endswith(".py")


def parse_code(text: str) -> UserCode | None:
    """The code that a text names by its form; None for any other text."""
    match = _FORM.fullmatch(text)
    if match is None or match["place"] in RESERVED:
        return None
    return UserCode(match["place"], match["name"])


def check_code(text: str) -> UserCode:
    """Refuse code that is not there, or does not define the name, without running it."""
    code = parse_code(text)
    if code is None:
        raise UsageError(f"'{printable(text)}' names no code: write FILE.py:make_model or MODULE:make_model")
    if not code.is_file:
        with search_here():
            top = code.place.partition(".")[0]
            if top not in sys.modules and PathFinder.find_spec(top) is None and top not in sys.builtin_module_names:
                raise UsageError(
                    f"'{printable(text)}': there is no module '{top}': check its name, or write FILE.py:NAME"
                )
        return code
    if not names_a_file(code.place):
        raise UsageError(f"the file '{printable(code.place)}' does not exist: check the path")
    names = _names_defined(Path(code.place))
    if names is not None and code.name.partition(".")[0] not in names:
        raise UsageError(did_you_mean(f"name in {printable(code.place, 60)}", code.name, names))
    return code


def _names_defined(path: Path) -> set[str] | None:
    """The names at the top level of a Python file; None if a star import may add others."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise UsageError(f"'{printable(path.name)}' is larger than {LARGEST_FILE >> 20} MB: it is no Python file")
        tree = ast.parse(path.read_bytes(), filename=path.name)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, UsageError):
            raise
        where = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise UsageError(
            f"'{printable(path.name)}' is no Python that can be read ({printable(first_line(error))}{where})"
        ) from error
    names: set[str] = set()
    for node in ast.walk(tree):  # below an `if` as well; names inside functions do no harm
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            if any(alias.name == "*" for alias in node.names):
                return None
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return names


def build_from_code(text: str, arguments: Mapping[str, Any]) -> nn.Module:
    """Run the code and return its module: called with the arguments if it is a class or a function.

    Random weights are those of torch's generator at 0, so that the same code is the same model.
    """
    import torch
    from torch import nn

    code = check_code(text)
    current_listener().note(f"{printable(text)}: this runs your code")
    try:
        with contextlib.redirect_stdout(sys.stderr), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            with search_here():
                module = _import_file(Path(code.place)) if code.is_file else importlib.import_module(code.place)
                named: Any = reduce(getattr, code.name.split("."), module)
                model = named if isinstance(named, nn.Module) else named(**arguments)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:  # code of users may raise anything
        reason = printable(f"{type(error).__name__}: {first_line(error)}", 300)
        raise UsageError(f"'{printable(text)}' failed ({reason}): --debug shows where") from error
    if not isinstance(model, nn.Module):
        raise UsageError(f"'{printable(text)}' gives a {type(model).__name__}: let it return a torch.nn.Module")
    return model


class _FromSource(SourceFileLoader):
    """Compiles a file as it is now: compiled before, it would count as the same while its second and size agree."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _import_file(path: Path) -> Any:
    """Import a file under a name that is no library's; files beside it can be imported by it."""
    name = f"_vitattack_code_{re.sub(r'[^A-Za-z0-9_]', '_', path.stem)}"
    loader = _FromSource(name, str(path.absolute()))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look it up there
    with _search(str(path.absolute().parent)):
        loader.exec_module(module)
    return module


@contextlib.contextmanager
def _search(folder: str) -> Iterator[None]:
    before = list(sys.path)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path[:] = before


def search_here() -> contextlib.AbstractContextManager[None]:
    """Modules of the current folder can be named, as with `python -m`."""
    return _search(str(Path.cwd()))
