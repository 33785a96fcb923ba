"""The run's book-keeping: what would make docs/conformance.md untrue is found."""

import re
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.conformance import ledger
from tests.conformance.document import natural, write
from tests.conformance.ledger import ROOT, Book, Run, golden_files, ids_of, problems

ROW = re.compile(r"^\| ((?:gp|sc)-(?!P-)\S+)(?: to (sc-\S+))? \|", re.MULTILINE)
"""A row of docs/protocol.md; `gp-P-20` is a user's report, no rule."""

BOOK = Book(
    rules={"gp-1": "one", "sc-A2": "two", "sc-A3": "three"},
    tests={"sc-A2": "tests/x.py::test_two"},
    left_out={"sc-A3": "Later."},
)


@pytest.fixture
def testdata(tmp_path, monkeypatch):
    """One golden file, which shows gp-1."""
    monkeypatch.setattr(ledger, "GOLDEN_MIN", 1)
    (tmp_path / "machine").mkdir()
    (tmp_path / "machine" / "one.txt").write_text(
        "# gp-1, arch-3, gp-P-20: why\n\n# gp-9\nx\n----\ny\n"
    )
    return tmp_path


def a_run(*, golden=("machine/one.txt",), outcome="passed"):
    """A run in which the golden file and the other test ended."""
    run = Run()
    run.add("tests/g.py::test_golden[one]", "passed", golden)
    run.add("tests/x.py::test_two[a]", "passed", ())
    run.add("tests/x.py::test_two[b]", outcome, ())
    return run


def test_a_true_document_has_no_problem(testdata):
    """Shown, shown by a test, left out: everything has its place."""
    assert problems(BOOK, a_run(), testdata) == []


def test_a_golden_file_that_did_not_run_is_found(testdata):
    """Then what it names is not shown either; so a run of other tests proves nothing."""
    found = problems(BOOK, a_run(golden=()), testdata)
    assert "machine/one.txt: did not run or did not pass" in found
    assert "gp-1: neither shown nor left out on purpose" in found


def test_golden_files_that_are_gone_are_found(testdata, monkeypatch):
    """A folder that was moved shows nothing, and nobody would miss it."""
    monkeypatch.setattr(ledger, "GOLDEN_MIN", 2)
    assert any("2 are the least" in one for one in problems(BOOK, a_run(), testdata))


@pytest.mark.parametrize("outcome", ["failed", "skipped"])
def test_a_test_that_fails_or_is_skipped_in_any_variant_shows_nothing(testdata, outcome):
    """One of its variants passed, another did not."""
    found = problems(BOOK, a_run(outcome=outcome), testdata)
    assert any(one.startswith("tests/x.py::test_two (shows sc-A2)") for one in found)
    assert "sc-A2: neither shown nor left out on purpose" in found


def test_a_rule_without_a_place_is_found(testdata):
    """Neither a golden file nor a test nor a reason."""
    book = replace(BOOK, rules={**BOOK.rules, "gp-2": "new"})
    assert problems(book, a_run(), testdata) == ["gp-2: neither shown nor left out on purpose"]


@pytest.mark.parametrize("name", ["gp-1", "sc-A2"])
def test_what_is_left_out_and_shown_is_found(testdata, name):
    """By a golden file or by a test."""
    book = replace(BOOK, left_out={**BOOK.left_out, name: "Later."})
    found = problems(book, a_run(), testdata)
    assert found == [f"{name}: left out on purpose, but a test shows it"]


def test_an_id_that_nobody_knows_is_found(testdata):
    """In a golden file, in tests.toml, in left_out.toml."""
    (testdata / "machine" / "one.txt").write_text("# gp-1, gp-7: why\n")
    book = replace(BOOK, left_out={**BOOK.left_out, "sc-Z1": "Later."})
    assert problems(book, a_run(), testdata) == [
        "gp-7: a golden file names it, rules.toml does not",
        "sc-Z1: left_out.toml names it, rules.toml does not",
    ]


def test_a_difference_that_nobody_shows_is_found(testdata):
    """What is said of Kafka and muster is held by a test, too."""
    book = replace(BOOK, differs=[{"ids": ["gp-1", "sc-A3"], "kafka": "x", "muster": "y"}])
    assert problems(book, a_run(), testdata) == [
        "sc-A3: differs.toml names it, and no test shows it"
    ]


def test_an_id_is_taken_from_the_first_line_only(testdata):
    """The rest is scenario; other families of ids are not counted."""
    assert ids_of("machine/one.txt", testdata) == ["gp-1"]


def test_ids_are_sorted_as_people_do():
    """Numbers by value."""
    names = ["sc-J10", "gp-2.10", "sc-J9", "gp-2.9"]
    assert sorted(names, key=natural) == ["gp-2.9", "gp-2.10", "sc-J9", "sc-J10"]


def rows_of(text):
    """The rules and scenarios that have a row; "sc-G01 to sc-G35" stands for each of them."""
    found = set()
    for first, last in ROW.findall(text):
        numbers = range(int(first[-2:]), int(last[-2:]) + 1) if last else ()
        found |= {f"{first[:-2]}{number:02}" for number in numbers} or {first}
    return found


def test_every_row_of_the_protocol_is_in_the_book_and_the_other_way_round():
    """So a rule that is written down is shown by a test, or left out for a reason."""
    rows = rows_of((ROOT / "docs" / "protocol.md").read_text("utf-8"))
    assert len(rows) > 500, "the page was moved, or its rows have another form"
    rules = set(Book.read().rules)
    assert sorted(rows - rules) == [], "docs/protocol.md has rules that rules.toml has not"
    assert sorted(rules - rows) == [], "rules.toml has rules that docs/protocol.md has not"


def test_a_range_of_scenarios_stands_for_each():
    """What is a user's report is no rule, and no row of another prefix is one."""
    text = "| gp-1.4 | x |\n| sc-G09 to sc-G11 | y |\n| gp-P-19 | z |\n| arch-3 | gp-7 |\n"
    assert rows_of(text) == {"gp-1.4", "sc-G09", "sc-G10", "sc-G11"}


def test_every_named_test_exists():
    """In its file, under its name; whether it passes is seen where it runs."""
    for test in set(Book.read().tests.values()):
        path, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text("utf-8"), test


def test_every_golden_folder_has_files():
    """As the ledger looks for them."""
    folders = {golden.partition("/")[0] for golden in golden_files()}
    assert folders == set(ledger.FOLDERS)


def test_the_document_says_what_the_book_says(testdata, monkeypatch):
    """Each id once, under its heading, with its file, test or reason."""
    monkeypatch.setattr(
        "tests.conformance.document.shown_by_golden", lambda _: {"gp-1": ["m/one.txt"]}
    )
    said = write(BOOK, a_run())
    assert "| gp-1 | one | `m/one` |" in said
    assert "| sc-A2 | two | `tests/x.py::test_two` |" in said
    assert said.index("Later.") < said.index("| sc-A3 | three |")


@pytest.mark.parametrize("workers", [[], ["-n", "2", "--dist", "loadfile"]], ids=["alone", "xdist"])
def test_a_run_of_a_few_tests_does_not_pass_for_all(workers):
    """The plugin in a real pytest, also across workers: what ran counts, what did not is named."""
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"),
            *("--conformance", "check", *workers, "tests/client/test_assignors_golden.py"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "machine/rules-1/leave_in_stable.txt: did not run or did not pass" in ran.stdout
    assert "assignors/range.txt: did not run" not in ran.stdout
    assert "sc-N01: neither" not in ran.stdout
