"""Values that notebooks show as their tables."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

from vitattack.core.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable


class Shown:
    """A value with tables, which `TABLES` names the maker of: its module is imported when they are asked for."""

    TABLES: ClassVar[str]  # "module:function", since values know nothing of reports

    def tables(self) -> list[Table]:
        """The tables that the command line would print."""
        module, _, function = self.TABLES.partition(":")
        make: Callable[[Shown], Table | list[Table]] = getattr(import_module(module), function)
        made = make(self)
        return [made] if isinstance(made, Table) else made

    def _repr_html_(self) -> str:
        return "".join(table.html() for table in self.tables())
