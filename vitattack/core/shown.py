"""Values that notebooks show as their tables."""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar

from vitattack.core.table import Table


def made_by(place: str, *given: Any) -> Any:
    """What the function at "module:function" makes; its module is imported now, since values know nothing of reports."""
    module, _, function = place.partition(":")
    return getattr(import_module(module), function)(*given)


class Shown:
    """A value with tables, which `TABLES` names the maker of: its module is imported when they are asked for."""

    TABLES: ClassVar[str]

    def tables(self) -> list[Table]:
        """The tables that the command line would print."""
        made: Table | list[Table] = made_by(self.TABLES, self)
        return [made] if isinstance(made, Table) else made

    def _repr_html_(self) -> str:
        return "".join(table.html() for table in self.tables())
