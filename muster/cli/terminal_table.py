"""A table on a terminal of some width: nothing is cut in the middle of a word or of a header.

What does not fit is made smaller in this order, each only where it is needed: long ids lose their
middle, sentences and lists go over several lines, columns with one value in all rows move above
the table. A list breaks after a comma.
Where that is not enough, the columns go on below, behind those that name the row again; one row
alone is a block with a line for each column.
"""

import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len

GAP: Final = "  "
IDS: Final = frozenset(
    {
        *("CONSUMER-ID", "CLIENT-ID", "GROUP-INSTANCE-ID", "STORE-UUID", "STORE", "OWNER"),
        *("BEFORE", "AFTER", "HOLDER", "LEADER-ID", "DATA-DIR", "LOG"),
    }
)
"""Columns of ids and of paths: both ends tell one from another, and `--wide` shows the whole."""

ID_CELLS_MIN: Final = 13
"""What an id is shortened to at most."""

SENTENCE_CELLS_MIN: Final = 24
"""What a column of sentences is narrowed to at most."""

ELLIPSIS: Final = "…"


def draw(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> str:
    """The table as lines of at most `width` cells, where no single word is longer."""
    grid = _Grid(tuple(columns), [tuple(row) for row in rows])
    if (fitted := grid.fitted(width)) is not None:
        return grid.lines(fitted)
    above, rest = grid.without_constants()
    captions = "".join(f"{one}\n" for one in _captions(above, width))
    if (fitted := rest.fitted(width)) is not None:
        return captions + rest.lines(fitted)
    if len(rows) > 1 and (parts := rest.parts(width)):
        return captions + "\n".join(parts)
    return grid.blocks(width)


def whole(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table as it is, however wide."""
    grid = _Grid(tuple(columns), [tuple(row) for row in rows])
    return grid.lines(grid.natural())


def shorten(text: str, cells: int) -> str:
    """The text without its middle: the same number of characters of both ends, or one more."""
    if cell_len(text) <= cells:
        return text
    left = cells // 2
    right = cells - left - 1
    return text[:left] + ELLIPSIS + (text[-right:] if right else "")


@dataclass(frozen=True, slots=True)
class _Grid:
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def natural(self) -> list[int]:
        """How wide each column is with nothing cut."""
        cells = zip(self.columns, *self.rows, strict=True)
        return [max(map(cell_len, column)) for column in cells]

    def fitted(self, width: int) -> list[int] | None:
        """Widths of all columns that fit; None where that cannot be."""
        widths = self.natural()
        for lowest in (self._lowest_ids(), self._lowest(str.split), self._lowest(_pieces)):
            over = sum(widths) + len(GAP) * (len(widths) - 1) - width
            _narrow(widths, lowest, over)
        return widths if sum(widths) + len(GAP) * (len(widths) - 1) <= width else None

    def _lowest_ids(self) -> dict[int, int]:
        return {
            at: max(ID_CELLS_MIN, cell_len(name))
            for at, name in enumerate(self.columns)
            if name in IDS
        }

    def _lowest(self, split: Callable[[str], list[str]]) -> dict[int, int]:
        """Columns with several words in them: not narrower than the longest."""
        lowest = {}
        for at, name in enumerate(self.columns):
            words = [word for row in self.rows for word in split(row[at])]
            if len(words) > len(self.rows):
                longest = max(map(cell_len, [name, *words]))
                lowest[at] = max(SENTENCE_CELLS_MIN, longest)
        return lowest

    def without_constants(self) -> tuple[list[tuple[str, str]], "_Grid"]:
        """Return what all rows have in common, and the table without it."""
        kept = list(range(len(self.columns)))
        if len(self.rows) > 1:
            kept = [at for at in kept if len({row[at] for row in self.rows}) > 1]
        above = [(name, self.rows[0][at]) for at, name in enumerate(self.columns) if at not in kept]
        return above, self._only(kept)

    def parts(self, width: int) -> list[str]:
        """The table below itself: each part has the columns that tell rows apart, and more.

        Nothing where one column does not fit beside those.
        """
        keys = self._keys()
        others = [at for at in range(len(self.columns)) if at not in keys]
        parts: list[str] = []
        while others:
            taken, fitted = 0, None
            while taken < len(others):
                more = self._only([*keys, *others[: taken + 1]]).fitted(width)
                if more is None:
                    break
                taken, fitted = taken + 1, more
            if fitted is None:
                return []
            parts.append(self._only([*keys, *others[:taken]]).lines(fitted))
            others = others[taken:]
        return parts

    def _keys(self) -> list[int]:
        """The first columns, as many as tell all rows apart."""
        count = 1
        while count < len(self.columns) and len({r[:count] for r in self.rows}) < len(self.rows):
            count += 1
        return list(range(count))

    def _only(self, kept: Sequence[int]) -> "_Grid":
        columns = tuple(self.columns[at] for at in kept)
        return _Grid(columns, [tuple(row[at] for at in kept) for row in self.rows])

    def lines(self, widths: Sequence[int]) -> str:
        """The table in columns of these widths."""
        rule = tuple("─" * width for width in widths)
        drawn = [self._line(self.columns, widths), self._line(rule, widths)]
        for row in self.rows:
            drawn += self._row(row, widths)
        return "".join(f"{one}\n" for one in drawn)

    def _row(self, row: Sequence[str], widths: Sequence[int]) -> list[str]:
        cells = [
            [shorten(text, width)] if name in IDS else _words(text, width)
            for name, text, width in zip(self.columns, row, widths, strict=True)
        ]
        height = max(map(len, cells))
        padded = [cell + [""] * (height - len(cell)) for cell in cells]
        return [self._line(line, widths) for line in zip(*padded, strict=True)]

    def _line(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        padded = [c + " " * (w - cell_len(c)) for c, w in zip(cells, widths, strict=True)]
        return GAP.join(padded).rstrip()

    def blocks(self, width: int) -> str:
        """Each row as lines of a column's name and its value, with an empty line between rows."""
        name_width = max(map(cell_len, self.columns))
        indent = " " * (name_width + len(GAP))
        drawn = []
        for row in self.rows:
            lines = []
            for name, text in zip(self.columns, row, strict=True):
                room = max(width - len(indent), 1)
                first, *more = _words(text, room)
                if name in IDS:
                    first, more = shorten(text, max(room, ID_CELLS_MIN)), []
                lines.append(f"{name.ljust(name_width)}{GAP}{first}".rstrip())
                lines += [indent + one for one in more]
            drawn.append("".join(f"{one}\n" for one in lines))
        return "\n".join(drawn)


def _captions(above: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Lines of names with their values, as many in a line as fit."""
    lines: list[str] = []
    for name, value in above:
        caption = f"{name}: {value}"
        if lines and cell_len(lines[-1] + GAP + caption) <= width:
            lines[-1] += GAP + caption
        else:
            lines += _words(caption, width)
    return lines


def _words(text: str, width: int) -> list[str]:
    """Lines of whole words; one line at least. A word that is too long breaks after its commas."""
    lines: list[str] = []
    for one in textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]:
        lines.append("")
        for piece in [one] if cell_len(one) <= width else _pieces(one):
            if cell_len(lines[-1] + piece) > width and lines[-1]:
                lines.append("")
            lines[-1] += piece
    return lines


def _pieces(text: str) -> list[str]:
    """Words, and the parts of a word that end with a comma."""
    return re.findall(r"[^\s,]*,|[^\s,]+", text)


def _narrow(widths: list[int], lowest: dict[int, int], over: int) -> None:
    """Take `over` cells, or as many as may be, from the columns in `lowest`, the widest first."""
    while over > 0:
        widest = max(
            (at for at in lowest if widths[at] > lowest[at]), key=widths.__getitem__, default=None
        )
        if widest is None:
            return
        widths[widest] -= 1
        over -= 1
