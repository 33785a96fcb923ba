"""docs/conformance.md, from what a run showed."""

import re
from collections.abc import Iterable

from tests.conformance.ledger import Book, Run, shown_by_golden

HEAD = """\
# Which rules of the group protocol hold

Written by `make conformance` from the golden files that ran and passed. `make test` compares it
with its own run and fails where they differ, where a golden file did not run, and where a rule is
neither shown nor left out on purpose. `gp-` is a rule, `sc-` a scenario; the first line of a golden
file in `tests/testdata` names both, and below it stands what was asked and what was answered.
"""


def write(book: Book, run: Run) -> str:
    """The whole document."""
    shown = shown_by_golden(run)
    by_golden = {name: files for name, files in shown.items() if name in book.rules}
    count = (len(by_golden), len(book.tests), len(book.left_out))
    files = ((name, ", ".join(map(_short, shown[name]))) for name in by_golden)
    parts = [
        HEAD,
        "{} are shown by golden files, {} by other tests, {} are left out.\n".format(*count),
        "## Shown by golden files\n",
        _table("golden files", files, book),
        "## Shown by other tests\n",
        "Where a scenario needs more than one node, time, or chance.\n",
        _table("test", book.tests.items(), book),
        "## Where Kafka does another thing\n",
        "As a broker of version 4.4 was seen to do, or as its source says.\n",
        _differs(book),
        "## Left out on purpose\n",
        _left_out(book),
    ]
    return "\n".join(parts)


def natural(name: str) -> list[tuple[int, int | str]]:
    """`gp-2.10` after `gp-2.9`, `sc-J9` before `sc-J10`."""
    words = re.findall(r"\d+|[A-Za-z]+", name)
    return [(0, int(word)) if word.isdecimal() else (1, word) for word in words]


def _short(golden: str) -> str:
    return f"`{golden.removesuffix('.txt')}`"


def _table(column: str, rows: Iterable[tuple[str, str]], book: Book) -> str:
    lines = [f"| id | what | {column} |", "|---|---|---|"]
    for name, value in sorted(rows, key=lambda row: natural(row[0])):
        shown = value if value.startswith("`") else f"`{value}`"
        lines.append(f"| {name} | {book.rules[name]} | {shown} |")
    return "\n".join(lines) + "\n"


def _differs(book: Book) -> str:
    rows = [f"| {', '.join(d['ids'])} | {d['kafka']} | {d['muster']} |" for d in book.differs]
    return "\n".join(["| id | Kafka | muster |", "|---|---|---|", *rows]) + "\n"


def _left_out(book: Book) -> str:
    by_why: dict[str, list[str]] = {}
    for name, why in book.left_out.items():
        by_why.setdefault(why, []).append(name)
    parts = []
    for why, names in by_why.items():
        rows = [f"| {name} | {book.rules[name]} |" for name in sorted(names, key=natural)]
        parts.append("\n".join([f"{why}\n", "| id | what |", "|---|---|", *rows]) + "\n")
    return "\n".join(parts)
