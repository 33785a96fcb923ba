"""Which build a result is of: read from git where there is a clone, and never in the way."""

import shutil
import subprocess
from datetime import datetime

import pytest

from musterd.chaos import build
from musterd.chaos.build import Build
from tests import machine_lacks

ONE, TWO = "1" * 40, "2" * 40
AT = "2026-11-22T01:02:03+00:00"


@pytest.fixture
def clone(tmp_path):
    """A git repository with one committed file; how git is run in it."""
    if shutil.which("git") is None:
        machine_lacks.refuse("no git is here")

    def git(*arguments):
        who = ["-c", "user.name=n", "-c", "user.email=e@x.example", "-c", "commit.gpgsign=false"]
        argv = ["git", *who, *arguments]
        return subprocess.run(argv, cwd=tmp_path, check=True, capture_output=True).stdout

    git("init", "-q")
    (tmp_path / "file.py").write_text("one\n")
    git("add", "file.py")
    git("commit", "-qm", "one")
    return tmp_path, git


def test_a_clone_tells_its_commit_and_whether_files_differ_from_it(clone):
    """Whole digits; files that git does not know make no difference, a tag neither."""
    folder, git = clone
    head = git("rev-parse", "HEAD").decode().strip()
    git("tag", "-a", "v1", "-m", "v1")
    (folder / "run.json").write_text("{}")
    assert build.commit(folder / "file.py") == head
    (folder / "file.py").write_text("two\n")
    assert build.commit(folder / "file.py") == f"{head}-dirty"


def test_an_installation_in_another_projects_clone_has_no_commit(clone):
    """It is not what ran."""
    folder, _ = clone
    (folder / "site-packages").mkdir()
    installed = folder / "site-packages" / "build.py"
    installed.write_text("")
    assert build.commit(installed) is None


def test_a_hooks_environment_does_not_mislead_it(clone, monkeypatch, tmp_path_factory):
    """Git tells its hooks where their own repository is."""
    folder, git = clone
    monkeypatch.setenv("GIT_DIR", str(tmp_path_factory.mktemp("other")))
    monkeypatch.setenv("GIT_WORK_TREE", "/")
    commit = build.commit(folder / "file.py")
    monkeypatch.undo()
    assert commit == git("rev-parse", "HEAD").decode().strip()


def test_without_git_or_a_clone_there_is_no_commit_and_no_error(monkeypatch, tmp_path):
    """The version and the time are there."""
    (tmp_path / "file.py").write_text("")
    assert build.commit(tmp_path / "file.py") is None
    monkeypatch.setenv("PATH", str(tmp_path))
    told = build.stamp()
    assert told["commit"] is None
    assert told.keys() == {"version", "commit", "at"}
    assert datetime.fromisoformat(told["at"]).utcoffset().total_seconds() == 0


def test_what_is_written_is_read_back_and_anything_else_is_unknown():
    """A file of an earlier muster has none."""
    stamp = build.stamp()
    assert build.read(stamp) == Build(**stamp)
    for told in (None, "0.1.0", {}, {**stamp, "at": None}, {**stamp, "commit": 3}):
        assert build.read(told) is None


def test_builds_differ_by_what_is_known_of_both():
    """By the commits first; of one whose commit is not known, by the versions."""
    mine = Build("0.1.0", ONE, AT)
    assert not mine.differs(Build("0.1.0", ONE, "2027-01-01T00:00:00+00:00"))
    assert mine.differs(Build("0.1.0", TWO, AT))
    assert mine.differs(Build("0.1.0", f"{ONE}-dirty", AT))
    assert not mine.differs(Build("0.1.0", None, AT))
    assert mine.differs(Build("0.2.0", None, AT))
    assert not mine.differs(Build(None, None, AT))


def test_a_build_is_named_shortly():
    """With the mark of changed files."""
    assert Build("0.1.0", f"{ONE}-dirty", AT).named == "muster 0.1.0, commit 111111111111-dirty"
    assert Build(None, None, AT).named == "muster not installed, no commit known"
