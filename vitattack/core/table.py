"""One table value and the forms it can take."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING

from vitattack.core.words import in_csv, in_html, in_latex, in_markdown, on_terminal

if TYPE_CHECKING:
    from rich.table import Table as RichTable


NARROWEST = 20  # characters of a column that is cut
WIDEST_IN_ONE_COLUMN = 6  # columns of a table that a paper's column takes


def in_width(text: str, width: int) -> str:
    """The text, cut at a word where it is longer."""
    if len(text) <= width:
        return text
    return f"{text[: width - 2].rsplit(' ', 1)[0].rstrip(',:; ')} …"


@dataclass(frozen=True)
class Table:
    """Rows of text under headings; `left` columns are left-aligned, the others right. Notes stand below."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = field(default=())
    left: int = 1
    line_each: bool = False  # on screens a row takes one line: the last column is cut where the terminal ends
    whole: bool = False  # the first column is something to copy: it is never broken
    groups: Sequence[tuple[str, str]] = ()  # of each column that is not left, a head over several and its own head
    best: frozenset[tuple[int, int]] = frozenset()  # cells to stand out, by row and column

    def part(self, places: Sequence[int]) -> Table:
        """Some of the columns; the left ones have to be among them."""
        where = {place: at for at, place in enumerate(places)}
        return replace(
            self,
            columns=[self.columns[place] for place in places],
            rows=[tuple(row[place] for place in places) for row in self.rows],
            groups=[self.groups[place - self.left] for place in places if place >= self.left] if self.groups else (),
            best=frozenset((at, where[to]) for at, to in self.best if to in where),
        )

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
        for at, row in enumerate(self.rows):
            styles = ("bold" if (at, to) in self.best else "" for to in range(len(row)))
            table.add_row(*(Text(on_terminal(cell), style) for cell, style in zip(row, styles, strict=True)))
        return table

    def narrowed(self, excess: int) -> Table:
        """The table with so many characters less in its last column; as it is where that would leave almost nothing."""
        width = max(len(row[-1]) for row in (self.columns, *self.rows)) - excess
        if excess <= 0 or width < NARROWEST:
            return self
        return replace(self, rows=[(*row[:-1], in_width(row[-1], width)) for row in self.rows])

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
        """booktabs, with heads over heads and the best in bold; notes go into the caption, as doubts belong to numbers.

        A table of many columns takes both columns of the page, and one that is still too wide is made smaller (graphicx).
        """

        def line(cells: Sequence[str]) -> str:
            return " & ".join(cells) + " \\\\\n"

        def cell(at: int, to: int, text: str) -> str:
            number, space, rest = text.partition(" ")
            whole = (at, to) not in self.best
            return in_latex(text) if whole else f"\\textbf{{{in_latex(number)}}}{space}{in_latex(rest)}"

        rows = [line([cell(at, to, text) for to, text in enumerate(row)]) for at, row in enumerate(self.rows)]
        shape = "l" * self.left + "r" * (len(self.columns) - self.left)
        caption = in_latex(". ".join([self.title, *self.notes]))
        environment = "table*" if len(self.columns) > WIDEST_IN_ONE_COLUMN else "table"
        heads = [*self.columns[: self.left], *(leaf for _, leaf in self.groups)] if self.groups else self.columns
        return (
            f"\\begin{{{environment}}}\n\\centering\n\\caption{{{caption}}}\n"
            "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%\n"
            f"\\begin{{tabular}}{{{shape}}}\n\\toprule\n"
            + self._heads_over_heads()
            + line([in_latex(" ".join(head.split())) for head in heads])
            + "\\midrule\n"
            + "".join(rows)
            + f"\\bottomrule\n\\end{{tabular}}}}\n\\end{{{environment}}}\n"
        )

    def _heads_over_heads(self) -> str:
        """The upper row of heads in LaTeX, each over its columns, with a rule below."""
        if not self.groups:
            return ""
        cells, rules = [" & " * (self.left - 1)], []
        at = self.left + 1
        for head, members in groupby(self.groups, key=lambda pair: pair[0]):
            count = len(list(members))
            cells.append(f"\\multicolumn{{{count}}}{{c}}{{{in_latex(head)}}}")
            if head:
                rules.append(f"\\cmidrule(lr){{{at}-{at + count - 1}}}")
            at += count
        return " & ".join(cells) + " \\\\\n" + "".join(rules) + "\n"


def as_csv(tables: Sequence[Table]) -> tuple[str, str]:
    """Tables as the text of one CSV file, and everything else they say.

    Tables of equal columns become one, with their titles in front; of others, only the first is rows.
    """
    first, *others = tables
    if others and all(each.columns == first.columns for each in others):
        rows = [(each.title, *row) for each in tables for row in each.rows]
        return Table(first.title, ("table", *first.columns), rows).csv(), "".join(each.remarks() for each in tables)
    return first.csv(), "\n".join([first.remarks(), *(each.remarks() + each.csv() for each in others)])
