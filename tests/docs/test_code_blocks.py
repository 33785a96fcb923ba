"""Every code block of the pages is run by a test, or says right before it why it is not.

A block that is not run has a comment on the line before it: `<!-- not run: REASON -->`. What runs
the others is in `block_runners.RUN`. Pictures (`mermaid`) and what a command prints (`text`) are
not code.
"""

import os
import re
import shlex
import subprocess
from functools import cache
from importlib import import_module
from itertools import takewhile

import pytest
from typer.testing import CliRunner

from bench.__main__ import NAMES
from muster.cli import build, families
from tests.docs.block_runners import RUN, SHOWN, left_out, record_run
from tests.docs.walkthrough import ROOT, blocks

PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "chaos/**/*.md", "tests/**/*.md", "packaging/**/*.md")
    for path in ROOT.glob(pattern)
)
INLINE = [
    str(path.relative_to(ROOT))
    for path in PAGES
    if path.name in {"README.md", "CONTRIBUTING.md"} or path.is_relative_to(ROOT / "docs")
]
COMMAND = re.compile(r"^(\$ |muster |make |python |pip |git )", re.MULTILINE)
MARK = re.compile(r"<!-- not run: \w+(?:[^\n>]* ){2,}[^\n>]+ -->\n```")


def code_blocks(page):
    """Those of a page that are code."""
    found = []
    for block in blocks(page):
        where = f"{page.name}, line {block.line}"
        assert block.kind, f"{where}: a block without a language"
        if block.kind not in SHOWN:
            found.append(block)
        else:
            assert not COMMAND.search(block.text), f"{where}: commands in a block of {block.kind}"
    return found


def unfit(page, name, table):
    """What is wrong with the blocks of a page."""
    rows = [begin for of, begin in table if of == name]
    used, wrong = set(), []
    for block in code_blocks(page):
        fits = [begin for begin in rows if block.text.startswith(begin)]
        if block.is_run and len(fits) != 1:
            wrong.append(
                f"{name}, line {block.line}: {len(fits)} tests run it, and no mark says why"
            )
        if block.is_run:
            used.update(fits)
        elif any(fits):
            wrong.append(f"{name}, line {block.line}: marked as not run, and a test runs it")
    wrong += [f"{name}: no block begins with {begin!r}" for begin in rows if begin not in used]
    text = page.read_text("utf-8")
    marks = len(re.findall(r"<!--[^>]*not[ -]run", text, re.IGNORECASE))
    if marks != len(MARK.findall(text)):
        wrong.append(f"{name}: a mark without a reason of three words, or not right before a block")
    return wrong


def test_every_block_is_run_or_says_why_not():
    """Each page, in both directions: neither a block nor a row of the table is left over."""
    names = {path: str(path.relative_to(ROOT)) for path in PAGES}
    assert [line for path in PAGES for line in unfit(path, names[path], RUN)] == []
    assert {of for of, _ in RUN} <= set(names.values())


@pytest.mark.parametrize(("name", "begin"), RUN)
def test_the_test_that_runs_a_block_exists_and_is_never_skipped(name, begin):
    """By its file. That it runs the block is seen when it has ended: tests/conftest.py."""
    file, test = RUN[name, begin].split("::")
    source = (ROOT / file).read_text("utf-8")
    assert re.search(rf"^(async )?def {test}\(", source, re.MULTILINE)
    assert not re.search(
        r"^@pytest.mark.(skip|xfail)|^pytestmark.*skip|importorskip\(", source, re.MULTILINE
    )


def test_a_block_that_its_test_leaves_out_is_told():
    """By its place; every test of the table would be, before it runs."""
    for test in set(RUN.values()):
        assert left_out(test, set()), test
    page = ROOT / "docs/election.md"
    (block,) = code_blocks(page)
    test = RUN["docs/election.md", ""]
    assert left_out(test, set()) == [f"docs/election.md, line {block.line}"]
    assert left_out(test, {block.text}) == left_out("tests/x.py::test_of_no_block", set()) == []


def test_a_page_that_is_wrong_is_found(tmp_path):
    """A block that nobody runs, marks that say nothing, rows that are left."""
    page, sh = tmp_path / "README.md", "```sh\nls\n```\n"
    table = {("README.md", "ls"): "x"}
    for text, rows, says in (
        (sh, {}, "line 1: 0 tests run it"),
        (f"<!-- not run: it takes hours -->\n{sh}", table, "marked as not run, and a test runs it"),
        (f"<!-- not run: it takes hours -->\n{sh}", table, "no block begins with 'ls'"),
        (f"<!-- not run: hours -->\n{sh}", {}, "a mark without a reason"),
        (f"<!-- not run: it takes hours -->\n\n{sh}", table, "not right before a block"),
        (f"<!-- Not run because of hours -->\n{sh}", table, "a mark without a reason"),
    ):
        page.write_text(text)
        assert any(says in line for line in unfit(page, "README.md", rows)), (text, says)
    for text, rows in ((sh, table), (f"<!-- not run: it takes hours -->\n{sh}", {})):
        page.write_text(text)
        assert unfit(page, "README.md", rows) == []
    for text, says in (
        ("```\nls\n```\n", "without a language"),
        ("```text\nmake x\n```\n", "text"),
    ):
        page.write_text(text)
        with pytest.raises(AssertionError, match=says):
            code_blocks(page)


def commands(text):
    """The commands of a block of shell, each as words, without what is shell's own."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        for end in ("2>&1", ">", "|", "&&", "&"):
            words = words[: words.index(end)] if end in words else words
        if words and words[0] in {"make", "muster"} and "$run" not in words:
            yield words


@cache
def whole_app():
    """Each command of muster, which takes half a second to import and build."""
    return build(families([]))


def refuse(words, app, targets):
    """Why a command cannot be: no such target, command or option."""
    program, *arguments = words
    if program == "make":
        unknown = {one for one in arguments if "=" not in one} - targets
        return f"no target {unknown}" if unknown else ""
    asked = CliRunner().invoke(app, [*arguments, "--help"])
    return asked.output if asked.exit_code else ""


def test_what_is_not_run_could_be():
    """Targets of make, commands of muster and their options are there."""
    app = whole_app()
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    looked = 0
    for page in PAGES:
        for block in code_blocks(page):
            for words in commands(block.text) if block.kind == "sh" and not block.is_run else ():
                assert refuse(words, app, targets) == "", (page.name, words)
                looked += 1
    assert looked > 20
    assert refuse(["make", "sims"], app, targets)
    assert refuse(["muster", "chaos", "sims"], app, targets)
    assert refuse(["muster", "chaos", "sim", "--sceneries", "x"], app, targets)


@pytest.mark.parametrize("name", INLINE)
def test_a_command_within_a_line_could_be_run(name, capsys):
    """Its target, command, options, bench and their values; `muster COMMAND` stands for any."""
    app = whole_app()
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = re.sub(r"^```.*?^```", "", (ROOT / name).read_text(), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"`((?:make|muster|python -m bench) (?!COMMAND)[^`\n]+)`", text)
    assert len(found) > 3 or name not in {"README.md", "docs/operations.md"}
    for words in map(shlex.split, found):
        head = [*takewhile(lambda word: not word.startswith("-"), words)]
        benches = [word.removeprefix("NAME=") for word in words if word.startswith("NAME=")]
        if words[0] == "python":
            wrong = refuse_bench(words[3], words[4:], capsys)
        elif words[0] == "make":
            wrong = refuse(head, app, targets)
            wrong += "".join(refuse_bench(bench, [], capsys) for bench in benches)
        else:
            options = [word for word in words if word.startswith("-")]
            told = CliRunner().invoke(app, [*head[1:], "--help"]).output if options else ""
            wrong = refuse(head, app, targets)
            wrong += "".join(one for one in options if one.partition("=")[0] not in told)
        assert wrong == "", words


def refuse_bench(name, options, capsys):
    """Why a benchmark cannot be: no such one, or it takes no such option or value."""
    if name not in NAMES:
        return f"no benchmark {name}"
    with pytest.raises(SystemExit):  # it stops at the last one, if not before
        import_module(f"bench.{name}").main([*options, "--no-such-option"])
    said = capsys.readouterr().err.strip().rpartition("error: ")[2]
    return "" if said == "unrecognized arguments: --no-such-option" else said


def test_a_benchmark_that_could_not_be_run_is_found(capsys):
    """By its name, an option and a value."""
    assert refuse_bench("growth", ["--path", "groups", "--minutes", "0.4"], capsys) == ""
    assert "invalid choice" in refuse_bench("growth", ["--path", "roads"], capsys)
    assert "invalid float" in refuse_bench("idle", ["--seconds", "x"], capsys)
    assert "--quick" in refuse_bench("fill", ["--quick"], capsys)
    assert refuse_bench("loops", [], capsys)


def test_the_script_that_chaos_calls_on_a_fault(tmp_path):
    """That of docs/chaos.md, with another `ssh`: each kind does something, another kind fails."""
    (text,) = (b.text for b in blocks(ROOT / "docs/chaos.md") if b.text.startswith("#!/bin/sh"))
    for name, body in (("fault.sh", text), ("ssh", '#!/bin/sh\necho "$@"\n')):
        (tmp_path / name).write_text(body)
        (tmp_path / name).chmod(0o755)

    def told(*words):
        return subprocess.run(
            [tmp_path / "fault.sh", *words],
            env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )

    for kind, harm, heal in (
        ("kill_leader", "kill -s KILL --kill-whom=main muster", "start muster"),
        ("pause_leader", "kill -s STOP muster", "kill -s CONT muster"),
    ):
        assert told("inject", kind, "node-2").stdout == f"node2 systemctl {harm}\n"
        assert told("heal", kind, "node-2").stdout == f"node2 systemctl {heal}\n"
    other = told("inject", "eio", "node-2")
    assert (other.returncode, other.stderr) == (1, "there is no inject eio here\n")
    record_run(text)


def test_make_lists_every_target_that_says_what_it_does():
    """Whatever characters its name has: `make` alone is where whoever has a checkout looks."""
    makefile = (ROOT / "Makefile").read_text()
    described = set(re.findall(r"^([^\s:]+):[^\n]*## ", makefile, re.MULTILINE))
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = {line.split(" ")[0] for line in done.stdout.splitlines() if line[:1].isalpha()}
    assert "test-backup-s3" in described
    assert described == listed & described
    assert set(re.findall(r"^\.PHONY: (\S+)$", makefile, re.MULTILINE)) == described
