"""docs/errors.md from docs/errors.toml and the code's own tables; `make errors` writes it.

Numbers, exit codes and exception classes are read off the code, so they cannot drift; which Kafka
names are in use is read off the sources.
"""

import re
import tomllib
from pathlib import Path

from muster import errors
from muster.cli.refusals import BY_CODE
from musterd.coordinator.machine.errors import Error

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "docs" / "errors.toml"
TARGET = ROOT / "docs" / "errors.md"
ANYTHING = "…"
CASE_COLUMNS = ("case", "bad input", "answer", "says", "next")

HEAD = """\
# Errors

<!-- Generated from docs/errors.toml by `make errors`; do not edit. -->

What muster says to bad input, and what to do next. `tests/bad_input` reads this file and runs every
case against a cluster of three real nodes; after each of them a commit succeeds in every shard. In
the column "says", … stands for any text.

An answer is one of:

- a Kafka name and number: the `status` in a response (gRPC itself succeeds);
- `gRPC` and a status: the call itself fails, nothing was done;
- `closed`: the connection is closed;
- `exit` and a code: a command or a node ends ([exit codes](cli.md)); "says" is its stderr.

Overload is no bad input: a call beyond a limit of the moment is answered `gRPC RESOURCE_EXHAUSTED`,
nothing was done, and it may be repeated after a pause.
"""


def source() -> dict:
    """docs/errors.toml."""
    return tomllib.loads(SOURCE.read_text("utf-8"))


def answer_text(answer: str) -> str:
    """A case's answer as the document spells it: Kafka's names with their numbers."""
    return f"{answer} ({int(Error[answer])})" if answer in Error.__members__ else answer


def names_in_use() -> set[str]:
    """Kafka's names that the coordinator answers, or that the SDK raises by itself."""
    answered = _found("coordinator", r"\bError\.([A-Z_]+)\b") - {"NONE", "UNSTABLE_OFFSET_COMMIT"}
    classes = _found("muster", r"\braise ([A-Z]\w+)\(") & vars(errors).keys()
    raised = {vars(errors)[name].error.name for name in classes}
    return answered | raised - {"UNKNOWN_SERVER_ERROR"}


def _found(package: str, pattern: str) -> set[str]:
    return {
        name
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.name != "errors.py"
        for name in re.findall(pattern, path.read_text("utf-8"))
    }


def document() -> str:
    """The whole of docs/errors.md."""
    data = source()
    parts = [HEAD]
    for section in data["section"]:
        rows = [
            (
                f"`{case['id']}`",
                case["input"],
                answer_text(case["answer"]),
                case["says"],
                case["next"],
            )
            for case in section["case"]
        ]
        parts.append(f"## {section['title']}\n\n{section['intro']}\n\n{_table(CASE_COLUMNS, rows)}")
    parts.append(_names(data["name"]))
    return "\n".join(parts)


def _names(names: list[dict]) -> str:
    rows = [
        (
            entry["name"],
            int(Error[entry["name"]]),
            "yes" if Error[entry["name"]].retriable else "no",
            int(BY_CODE[Error[entry["name"]]][0]) if Error[entry["name"]] in BY_CODE else "-",
            f"`muster.errors.{errors.error_class(Error[entry['name']]).__name__}`",
            entry["means"],
            entry["next"],
        )
        for entry in names
    ]
    columns = ("name", "number", "retriable", "exit code", "exception", "means", "next")
    used = {entry["name"] for entry in names}
    rest = [f"{error.name} ({int(error)})" for error in Error if error.name not in {"NONE", *used}]
    return (
        "## Kafka's names\n\nThe only vocabulary of refusal, with Kafka's numbers. Retriable: the "
        "same request may succeed later, unchanged. The exit code is that of a `muster` command "
        "that meets the error.\n\n"
        f"{_table(columns, rows)}\n"
        f"Part of the vocabulary, answered by nothing yet: {', '.join(rest)}.\n"
    )


def _table(columns, rows) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |\n" for line in lines
    )


def cases(text: str) -> dict[str, dict[str, str]]:
    """The cases as they stand in a docs/errors.md: id -> the other columns by name."""
    found: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == len(CASE_COLUMNS) and re.fullmatch(r"`\w+`", cells[0]):
            name = cells[0].strip("`")
            if name in found:
                raise ValueError(f"{name} stands twice in the table")
            found[name] = dict(zip(CASE_COLUMNS[1:], cells[1:], strict=True))
    return found


def matches(pattern: str, text: str) -> bool:
    """Whether `text` is `pattern`, in which … stands for any text."""
    parts = (re.escape(part) for part in pattern.split(ANYTHING))
    return re.fullmatch(".*".join(parts), text, re.DOTALL) is not None


if __name__ == "__main__":
    TARGET.write_text(document(), "utf-8")
