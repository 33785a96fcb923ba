"""The maps of the suite: who looks for a file finds it from the README of its folder."""

from pathlib import Path

import pytest

import musterd.chaos

ROOT = Path(musterd.chaos.__file__).parent
HIDDEN = {"__init__.py", "__main__.py", "__pycache__", "README.md"}


def _names(folder):
    return {
        f"{one.name}/" if one.is_dir() else one.name
        for one in folder.iterdir()
        if one.name not in HIDDEN
    }


def _files(folder):
    """By their paths below the folder."""
    found = (one for one in folder.rglob("*.py") if one.name not in HIDDEN)
    return {one.relative_to(folder).as_posix() for one in found}


@pytest.mark.parametrize(("folder", "names"), [(ROOT, _names), (ROOT / "sim", _files)])
def test_the_map_of_a_folder_names_everything_in_it(folder, names) -> None:
    """A file that was added has a line; one that is gone has none."""
    text = (folder / "README.md").read_text("utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = {word.strip("`") for row in rows for word in row.split()}
    assert named == names(folder)
