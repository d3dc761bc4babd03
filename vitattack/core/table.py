"""One table value and the forms it can take."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vitattack.core.words import in_csv, in_html, in_latex, in_markdown, on_terminal

if TYPE_CHECKING:
    from rich.table import Table as RichTable


@dataclass(frozen=True)
class Table:
    """Rows of text under headings; `left` columns are left-aligned, the others right. Notes stand below."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = field(default=())
    left: int = 1
    whole: bool = False  # the first column is something to copy: it is never broken

    def rich(self) -> RichTable:
        """The table without its title."""
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
        for number, column in enumerate(self.columns):
            text = number < self.left
            table.add_column(
                Text(on_terminal(column)),
                justify="left" if text else "right",
                overflow="fold",
                no_wrap=not text or self.whole,
            )
        for row in self.rows:
            table.add_row(*(Text(on_terminal(cell)) for cell in row))
        return table

    def stacked(self) -> str:
        """Where the lines are too long: the first cell of a row on one line, what the others say below it."""
        widths = [max(map(len, cells)) for cells in zip(self.columns, *self.rows, strict=True)]

        def lines(cells: Sequence[str]) -> str:
            rest = "  ".join(cell.ljust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
            return f"{cells[0]}\n    {rest.rstrip()}\n"

        return on_terminal(f"{self.title}\n\n" + lines(self.columns) + "\n" + "".join(map(lines, self.rows)))

    def markdown(self) -> str:
        def line(cells: Sequence[str]) -> str:
            return "| " + " | ".join(map(in_markdown, cells)) + " |\n"

        rule = ["---" if number < self.left else "--:" for number in range(len(self.columns))]
        notes = "".join(f"\n{in_markdown(note)}\n" for note in self.notes)
        return (
            f"{in_markdown(self.title)}\n\n" + line(self.columns) + line(rule) + "".join(map(line, self.rows)) + notes
        )

    def html(self) -> str:
        """A table for notebooks: title, rows and, in small, notes; colours and fonts are those of the page."""

        def line(cells: Sequence[str], tag: str) -> str:
            sides = ("left" if number < self.left else "right" for number in range(len(cells)))
            return "<tr>" + "".join(
                f'<{tag} style="text-align:{side}">{in_html(cell).replace(chr(10), "<br>")}</{tag}>'
                for cell, side in zip(cells, sides, strict=True)
            )

        notes = "".join(f"<div><small>{in_html(note)}</small></div>" for note in self.notes)
        return (
            f"<div><strong>{in_html(self.title)}</strong></div><table><thead>{line(self.columns, 'th')}</thead><tbody>"
            + "".join(line(row, "td") for row in self.rows)
            + f"</tbody></table>{notes}"
        )

    def csv(self) -> str:
        """The headings and the rows, and nothing that a reader of tables would take for one: the rest is `remarks`."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(map(in_csv, self.columns))
        writer.writerows(map(in_csv, row) for row in self.rows)
        return stream.getvalue()

    def remarks(self) -> str:
        """The title and the notes, a line each: a number should not travel without its n and its doubts."""
        return "".join(" ".join(on_terminal(line).split()) + "\n" for line in (self.title, *self.notes))

    def latex(self) -> str:
        """booktabs; the notes go into the caption, a number should not travel without its doubts."""

        def line(cells: Sequence[str]) -> str:
            return " & ".join(map(in_latex, cells)) + " \\\\\n"

        shape = "l" * self.left + "r" * (len(self.columns) - self.left)
        caption = in_latex(". ".join([self.title, *self.notes]))
        return (
            "\\begin{table}\n\\centering\n"
            f"\\caption{{{caption}}}\n\\begin{{tabular}}{{{shape}}}\n\\toprule\n"
            + line(self.columns)
            + "\\midrule\n"
            + "".join(map(line, self.rows))
            + "\\bottomrule\n\\end{tabular}\n\\end{table}\n"
        )


def as_csv(tables: Sequence[Table]) -> tuple[str, str]:
    """Tables as the text of one CSV file, and everything else they say.

    Tables of equal columns become one, with their titles in front; of others, only the first is rows.
    """
    first, *others = tables
    if others and all(each.columns == first.columns for each in others):
        rows = [(each.title, *row) for each in tables for row in each.rows]
        return Table(first.title, ("table", *first.columns), rows).csv(), "".join(each.remarks() for each in tables)
    return first.csv(), "\n".join([first.remarks(), *(each.remarks() + each.csv() for each in others)])
