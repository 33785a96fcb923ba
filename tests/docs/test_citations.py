"""What code, tests and documents cite is in the repository: rules, documents, headings, files.

A rule is cited by its id (`gp-4.3`), and docs/protocol.md has a row for each id. A heading is cited
as the document's name, a comma and the heading: "docs/replay.md, The cursor".
"""

import re
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
PROTOCOL = "docs/protocol.md"
THIS = "tests/docs/test_citations.py"
GOLDEN = "tests/testdata/"
"""Golden files are never changed, also where they cite in an older form."""
MADE_UP = ("tests/conformance/test_ledger.py", "tests/conformance/document.py")
"""Ids in these files are examples."""

RULE = re.compile(
    r"(?<![\w/.-])(?:gp|sc|inv|pso|arch|raft|chaos)-(?:P-\d+|[A-Z]?\d+[a-z]?(?:\.\d+)*)(?![\w-])"
)
ROW = re.compile(r"^\| ([a-z]+-\S+)(?: to ([a-z]+-\S+))? \|", re.MULTILINE)
SECTION = re.compile(r"\b[Ss]ections? \d|§|group-protocol|raft-layer|\b[Aa]rchitecture \d")
OUTSIDE = re.compile(r"[Tt]hesis|paper|RFC|KIP")
"""Sources that have numbered sections and are not ours."""
DOCUMENT = re.compile(r"[\w./-]*\w\.md\b")
HEADING_CITED = re.compile(r"(docs/[\w-]+\.md), ([A-Z][^).;:\"]*)")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"[\w.*-]+(?:/[\w.*-]+)*/?")
SUFFIXES = (".md", ".proto", ".py", ".sh", ".toml", ".txt", ".yml")


def tracked(*patterns: str) -> list[str]:
    """The files that git knows."""
    command = ["git", "ls-files", *patterns]
    return subprocess.check_output(command, cwd=ROOT, text=True).splitlines()


def text_of(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def sources() -> Iterator[tuple[str, str]]:
    """Name and text of each file that may cite; generated code repeats the proto files."""
    for name in tracked("*.py", "*.proto", "*.toml", "*.txt", "*.md", "*.yml"):
        if name != THIS and not name.startswith("muster/v1/"):
            yield name, text_of(name)


def lines() -> Iterator[tuple[str, str]]:
    """Each line of the sources, and where it stands; golden files are left out."""
    for name, text in sources():
        if not name.startswith(GOLDEN):
            for number, line in enumerate(text.splitlines(), 1):
                yield f"{name}:{number}", line


def prose_of(name: str) -> str:
    """A document without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", text_of(name), flags=re.MULTILINE | re.DOTALL)


def headings_of(name: str) -> list[str]:
    return re.findall(r"^#+ (.+)$", prose_of(name), flags=re.MULTILINE)


def anchor_of(heading: str) -> str:
    """As Git hosts make one of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def rules() -> set[str]:
    """The ids that docs/protocol.md has a row for; "sc-G01 to sc-G35" is a row for each of them."""
    found = set()
    for first, last in ROW.findall(text_of(PROTOCOL)):
        family, low = first[:-2], first[-2:]
        if last:
            found |= {f"{family}{number:02}" for number in range(int(low), int(last[-2:]) + 1)}
        else:
            found.add(first)
    return found


def cited_rules() -> dict[str, str]:
    """Each id that is cited elsewhere, and one place of it."""
    found: dict[str, str] = {}
    for name, text in sources():
        if name != PROTOCOL and name not in MADE_UP:
            found |= dict.fromkeys(RULE.findall(text), name)
    return found


def places_of(base: str, path: str) -> Iterator[str]:
    """Where a path in a document may start: the root, the document's folder, two known folders."""
    for folder in (".", base, f"{GOLDEN}", "tests"):
        yield str(PurePosixPath(folder, path))
    yield f"{GOLDEN}{path}.txt"
    yield path.removeprefix("musterd/")


def exists(files: set[str], base: str, path: str) -> bool:
    """Whether a file or folder is there; a star stands for any part of a name."""
    return any(
        fnmatch(file, place) or file.startswith(f"{place}/")
        for place in places_of(base, path.rstrip("/"))
        for file in files
    )


def test_every_rule_that_is_cited_has_a_row_and_every_row_is_cited():
    """A reader finds each cited id in docs/protocol.md, which has no rule that nobody needs."""
    cited, rows = cited_rules(), rules()
    assert {rule: cited[rule] for rule in sorted(cited.keys() - rows)} == {}
    assert sorted(rows - cited.keys()) == []


def test_every_scenario_of_a_range_has_a_row_of_its_own_in_the_table_of_conformance():
    """docs/protocol.md names families of scenarios, docs/conformance.md says what each one is."""
    alone = {first for first, last in ROW.findall(text_of(PROTOCOL)) if not last}
    ranged = {rule for rule in rules() - alone if rule.startswith("sc-")}
    listed = set(RULE.findall(text_of("docs/conformance.md")))
    assert sorted(ranged - listed) == []


def test_every_document_that_is_cited_exists():
    """By its path from the root or, where that is enough, by the end of it."""
    files = [f"/{name}" for name in tracked()]
    wrong = [
        f"{place}: {name}"
        for place, line in lines()
        for name in DOCUMENT.findall(line)
        if not any(file.endswith(f"/{name.removeprefix('./')}") for file in files)
        and not (ROOT / place.partition(":")[0]).parent.joinpath(name).exists()
    ]
    assert wrong == []


def test_every_heading_that_is_cited_exists_and_no_section_is_cited_by_number():
    """Headings have names, and only sources outside of the repository have numbered sections."""
    wrong = [
        f"{place}: {document}, {heading}"
        for place, line in lines()
        for document, heading in HEADING_CITED.findall(line)
        if heading.strip() not in headings_of(document)
    ]
    wrong += [
        f"{place}: {line.strip()}"
        for place, line in lines()
        if SECTION.search(line) and not OUTSIDE.search(line)
    ]
    assert wrong == []


def test_every_file_that_a_document_names_exists_with_the_test_that_it_names():
    """`a/b.py` is a file, `a/b.py::test_c` a test in it; what is no file's name is passed over."""
    files = set(tracked())
    tops = {name.partition("/")[0] for name in files if "/" in name}
    wrong = []
    for document in tracked("README.md", "docs/*.md", "chaos/**/README.md"):
        if document.startswith("docs/adr/"):
            continue
        base = str(PurePosixPath(document).parent)
        for code in CODE.findall(prose_of(document)):
            path, _, name = code.partition("::")
            inside = "/" in path and path.partition("/")[0] in tops
            if not FILE.fullmatch(path) or not (inside or path.endswith(SUFFIXES)):
                continue
            if not exists(files, base, path):
                wrong.append(f"{document}: {code}")
            elif name and not re.search(rf"\b(?:def|class) {name}\b", text_of(path)):
                wrong.append(f"{document}: {code}: no such test")
    assert wrong == []


def test_every_link_between_documents_leads_to_a_file_and_a_heading():
    """A link's path starts at its document's folder, its anchor is that of a heading."""
    wrong = []
    for document in tracked("*.md"):
        for link in LINK.findall(prose_of(document)):
            path, _, anchor = link.partition("#")
            target = (ROOT / document).parent / path if path else ROOT / document
            if re.match(r"[a-z]+:", link):
                continue
            if not target.exists():
                wrong.append(f"{document}: {link}")
            elif anchor and anchor not in map(anchor_of, headings_of(str(target))):
                wrong.append(f"{document}: {link}: no such heading")
    assert wrong == []
