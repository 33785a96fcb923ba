"""The input: every line in exactly one partition, and the same count however it is cut."""

from collections import Counter
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from musterd.demo.corpus import (
    LINES_PER_PARTITION_MIN,
    CorpusError,
    PartitionReader,
    count_alone,
    partition_path,
    read_corpus,
    spread,
)
from musterd.demo.tokens import count_tokens, table_digest


def write(root, **files):
    """Files of so many numbered lines."""
    for name, lines in files.items():
        text = "".join(f"line {number} of {name}\n" for number in range(lines))
        (root / f"{name}.txt").write_text(text)


@pytest.fixture
def source(tmp_path):
    """An input of a few files, and room beside it."""
    root = tmp_path / "input"
    root.mkdir()
    write(root, a=70, b=50, c=40, d=30, e=30, f=20)
    return root


@given(st.lists(st.integers(0, 1000), max_size=60), st.integers(1, 12))
def test_each_file_goes_to_one_partition_and_none_is_much_heavier(sizes, partitions):
    """The heaviest partition exceeds the lightest by one file at most."""
    shares = spread(sizes, partitions)
    assert sorted(number for share in shares for number in share) == list(range(len(sizes)))
    loads = [sum(sizes[number] for number in share) for share in shares]
    assert max(loads) - min(loads) <= max(sizes, default=0)


def test_the_partitions_hold_every_line_of_the_input_once(source, tmp_path):
    """Lines as a multiset; a last line without its newline is one, too."""
    (source / "g.txt").write_bytes(b"first\nlast without newline")
    (source / "sub").mkdir()
    write(source / "sub", h=25)
    corpus = read_corpus(source, 4, tmp_path / "corpus")
    found = Counter()
    for partition, lines in enumerate(corpus.lines):
        data = partition_path(corpus.folder, partition).read_bytes()
        assert data.count(b"\n") == lines
        found.update(data.splitlines())
    wanted = Counter()
    for path in source.rglob("*.txt"):
        wanted.update(path.read_bytes().splitlines())
    assert found == wanted


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=30))
def test_counting_line_by_line_gives_what_counting_the_whole_gives(lines):
    """Also where the bytes are no UTF-8: a token never crosses a line."""
    whole, parts = Counter(), Counter()
    count_tokens(b"\n".join(lines), whole)
    for line in b"\n".join(lines).split(b"\n"):
        count_tokens(line + b"\n", parts)
    assert whole == parts


def test_a_reader_goes_on_where_an_offset_points(source, tmp_path):
    """Offset n is the n-th line, from 0; at the end there is nothing."""
    corpus = read_corpus(source, 2, tmp_path / "corpus")
    lines = partition_path(corpus.folder, 1).read_bytes().splitlines(keepends=True)
    with closing(PartitionReader(corpus.folder, 1, 7)) as reader:
        assert reader.read(3) == b"".join(lines[7:10])
        assert reader.read(len(lines)) == b"".join(lines[10:])
        assert reader.read(1) == b""


def test_what_is_no_text_or_hidden_is_left_out(source, tmp_path):
    """Binary files, hidden files and folders, links, empty files."""
    (source / "image.bin").write_bytes(b"\x89PNG\0\0" + b"\n" * 50)
    (source / ".hidden").write_text("x\n" * 50)
    (source / ".git").mkdir()
    (source / ".git" / "config").write_text("x\n" * 50)
    (source / "empty").touch()
    (source / "link").symlink_to(source / "a.txt")
    corpus = read_corpus(source, 2, tmp_path / "corpus")
    assert {one.path.name for one in corpus.files} == {f"{name}.txt" for name in "abcdef"}


def test_the_default_is_pythons_own_library_without_what_was_installed(tmp_path):
    """Sources only; more than any small input."""
    corpus = read_corpus(None, 48, tmp_path / "corpus")
    names = {str(one.path) for one in corpus.files}
    assert any(name.endswith("/asyncio/base_events.py") for name in names)
    assert all(name.endswith(".py") and "site-packages" not in name for name in names)
    assert max(corpus.lines) < 1.2 * min(corpus.lines)


def test_a_missing_directory_and_too_small_an_input_are_refused_with_a_next_step(source, tmp_path):
    """Before anything is started."""
    with pytest.raises(CorpusError, match="no such directory") as missing:
        read_corpus(source / "nowhere", 2, tmp_path / "corpus")
    assert missing.value.next_step
    partitions = 240 // LINES_PER_PARTITION_MIN + 1
    with pytest.raises(CorpusError, match=f"of {partitions} partitions only") as small:
        read_corpus(source, partitions, tmp_path / "corpus")
    assert "--partitions" in small.value.next_step


def test_an_input_that_changes_while_it_is_read_is_refused(source, tmp_path):
    """Otherwise the workers would be blamed for it."""
    corpus = read_corpus(source, 2, tmp_path / "corpus")
    (source / "a.txt").write_text("changed\n" * 70)
    with pytest.raises(CorpusError, match=r"a\.txt was changed"):
        count_alone(corpus)


def test_the_digest_depends_on_every_count_and_not_on_the_order():
    """Equal tables have equal digests; a count off by one has another."""
    table = {"b": 2, "a": 1, "ü": 3}
    assert table_digest(table) == table_digest(dict(sorted(table.items())))
    assert table_digest(table) != table_digest({**table, "a": 2})
    assert table_digest(table) != table_digest({"b": 2, "a": 1})
