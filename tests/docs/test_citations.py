"""What code, tests and documents cite is in the repository: rules, documents, headings, files.

A rule is cited by its id (`gp-4.3`), and docs/protocol.md has a row for each id. A heading is cited
as the document's name, a comma and the heading: "docs/replay.md, The cursor".
"""

import fnmatch
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
PROTOCOL = "docs/protocol.md"
GOLDEN = "tests/testdata/"
"""Golden files are never changed, also where they cite in an older form."""
EXAMPLES = ("tests/conformance/test_ledger.py", "tests/conformance/document.py")
"""The ids in these files are made up."""

RULE = re.compile(
    r"(?<![\w/.-])(?:gp|sc|inv|pso|arch|raft|chaos)-(?:P-\d+|[A-Z]?\d+[a-z]?(?:\.\d+)*)(?![\w-])"
)
ROW = re.compile(r"^\| ([a-z]+-\S+)(?: to ([a-z]+-\S+))? \|", re.MULTILINE)
SECTION = re.compile(r"\b[Ss]ections? \d|§|group-protocol|raft-layer|\b[Aa]rchitecture \d")
OUTSIDE = re.compile(r"[Tt]hesis|paper|RFC|KIP")
"""Sources that have numbered sections and are not ours."""
DOCUMENT = re.compile(r"[\w./-]*\w\.md\b")
HEADING_CITED = re.compile(r"(docs/[\w-]+\.md), ([A-Z][^).;:\"]*)")
DECISION = re.compile(r"\bADRs? (\d+)|docs/adr/(\d{4})")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"[\w.*-]+(?:/[\w.*-]+)*/?")
SUFFIXES = (".md", ".proto", ".py", ".sh", ".toml", ".txt", ".yml")


def tracked(*patterns: str) -> list[str]:
    """The files that git knows."""
    command = ["git", "ls-files", *patterns]
    return subprocess.check_output(command, cwd=ROOT, text=True).splitlines()


def sources() -> Iterator[tuple[str, str]]:
    """Name and text of each file that may cite; generated code repeats the proto files."""
    for name in tracked("*.py", "*.proto", "*.toml", "*.txt", "*.md", "*.yml", "*.sh", "Makefile"):
        if name != "tests/docs/test_citations.py" and not name.startswith("muster/v1/"):
            yield name, (ROOT / name).read_text("utf-8")


def lines() -> Iterator[tuple[str, str]]:
    """Each line of the sources, and where it stands; golden files are left out."""
    for name, text in sources():
        if not name.startswith(GOLDEN):
            for number, line in enumerate(text.splitlines(), 1):
                yield f"{name}:{number}", line


def prose_of(name: str) -> str:
    """A document without its blocks of code."""
    text = (ROOT / name).read_text("utf-8")
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def headings_of(name: str) -> list[str]:
    """A document's headings of every level."""
    return re.findall(r"^#+ (.+)$", prose_of(name), flags=re.MULTILINE)


def anchor_of(heading: str) -> str:
    """What a link to a heading ends with."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def rows() -> tuple[set[str], set[str]]:
    """The ids with a row of their own, and those within a range such as "sc-G01 to sc-G35"."""
    found = ROW.findall((ROOT / PROTOCOL).read_text("utf-8"))
    ranged = {
        f"{first[:-2]}{number:02}"
        for first, last in found
        if last
        for number in range(int(first[-2:]), int(last[-2:]) + 1)
    }
    return {first for first, last in found if not last}, ranged


def exists(known: set[str], base: str, path: str) -> bool:
    """Whether a file or folder is there; a star stands for any part of a name.

    A path starts at the root, at the document's folder, in tests or, for a golden file without its
    suffix, in tests/testdata; the server's packages are links in musterd. chaos/README.md is a map:
    its rows name files by their last name (tests/chaos/test_map.py).
    """
    path = path.rstrip("/")
    places = [path, f"{base}/{path}", f"tests/{path}", f"{GOLDEN}{path}", f"{GOLDEN}{path}.txt"]
    places.append(path.removeprefix("musterd/"))
    if base == "chaos" and "/" not in path:
        places.append(f"{base}/*/{path}")
    return any(fnmatch.filter(known, p) if "*" in p else p in known for p in places)


def test_every_rule_that_is_cited_has_a_row_and_every_row_is_cited():
    """A reader finds each cited id in docs/protocol.md, which has no rule that nobody needs."""
    cited = {
        rule: name
        for name, text in sources()
        if name != PROTOCOL and name not in EXAMPLES
        for rule in RULE.findall(text)
    }
    there = set.union(*rows())
    wrong = [f"{cited[rule]}: {rule} has no row" for rule in sorted(cited.keys() - there)]
    wrong += [f"{PROTOCOL}: {rule} is cited nowhere" for rule in sorted(there - cited.keys())]
    assert not wrong, "\n".join(wrong)


def test_every_scenario_within_a_range_has_a_row_in_the_table_of_conformance():
    """docs/protocol.md names families of scenarios, docs/conformance.md says what each one is."""
    listed = RULE.findall((ROOT / "docs/conformance.md").read_text("utf-8"))
    wrong = sorted(rows()[1].difference(listed))
    assert not wrong, "\n".join(wrong)


def test_every_document_that_is_cited_exists():
    """By its path from the root or from the citing file, or by the end of its path."""
    files = [f"/{name}" for name in tracked("*.md")]
    wrong = [
        f"{place}: {name}"
        for place, line in lines()
        for name in DOCUMENT.findall(line)
        if not any(file.endswith(f"/{name}") for file in files)
        and not (ROOT / place.partition(":")[0]).parent.joinpath(name).exists()
    ]
    assert not wrong, "\n".join(wrong)


def test_every_decision_that_is_cited_by_its_number_exists():
    """As "ADR 15" or as docs/adr/0015."""
    known = {int(Path(name).name[:4]) for name in tracked("docs/adr/*.md")}
    wrong = [
        f"{place}: {''.join(number)}"
        for place, line in lines()
        for number in DECISION.findall(line)
        if int("".join(number)) not in known
    ]
    assert not wrong, "\n".join(wrong)


def test_every_heading_that_is_cited_exists_and_no_section_is_cited_by_number():
    """Headings have names, and only sources outside of the repository have numbered sections."""
    wrong = []
    for place, line in lines():
        for document, heading in HEADING_CITED.findall(line):
            if not (ROOT / document).exists() or heading.strip() not in headings_of(document):
                wrong.append(f"{place}: {document}, {heading}")
        if SECTION.search(line) and not OUTSIDE.search(line) and not place.startswith(PROTOCOL):
            wrong.append(f"{place}: {line.strip()}")
    assert not wrong, "\n".join(wrong)


def test_every_file_that_a_document_names_exists_with_the_test_that_it_names():
    """`a/b.py` is a file, `a/b.py::test_c` a test in it; what names no file is passed over.

    Decisions and the changelog tell of files that are gone since.
    """
    files, wrong = tracked(), []
    known = {str(one) for name in files for one in (name, *PurePosixPath(name).parents)}
    tops = {name.partition("/")[0] for name in files if "/" in name}
    past = tracked("CHANGELOG.md", "docs/adr/*.md")
    for document in sorted({*tracked("*.md")}.difference(past)):
        base = str(PurePosixPath(document).parent)
        for code in CODE.findall(prose_of(document)):
            path, _, name = code.partition("::")
            is_path = "/" in path and path.partition("/")[0] in tops
            if not FILE.fullmatch(path) or not (is_path or path.endswith(SUFFIXES)):
                continue
            if not exists(known, base, path):
                wrong.append(f"{document}: {code}")
            elif name and not re.search(rf"\b(?:def|class) {name}\b", (ROOT / path).read_text()):
                wrong.append(f"{document}: {code}: no such test")
    assert not wrong, "\n".join(wrong)


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
    assert not wrong, "\n".join(wrong)
