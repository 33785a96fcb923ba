"""What a replay says at its end, as tables, as JSON and as a page; and the queries of the docs."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import duckdb
import pytest

from musterd.replay import summary
from musterd.replay.page import page
from musterd.replay.summary import Churn, Round, Summary, _causes, summarize
from tests.docs.block_runners import record_run
from tests.export.exports import export_once, lively
from tests.export.node import FakeNode, Script, vector
from tests.replay.results import replayed
from tests.replay.test_cli import muster

DOC = (Path(__file__).parents[2] / "docs" / "replay.md").read_text("utf-8")


def cooperative(node):
    """Two rounds that move two of four partitions, 60 s after the first assignment."""
    group = Script(node, "<coop>", partitions=4)
    (a,) = group.form("a")
    node.advance(60_000)
    b = group.join("b")
    node.advance(200)
    group.rejoin(a)
    group.settle({a: vector(t=[0, 1]), b: vector()})
    node.advance(700)
    group.rejoin(a, meta=b"less", released=True)
    group.rejoin(b)
    node.advance(40)
    group.settle({a: vector(t=[0, 1]), b: vector(t=[2, 3])})


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """An export of a lively shard, and of a cooperative group."""
    node = FakeNode()
    lively(node)
    cooperative(node)
    node.checkpoint()
    folder = tmp_path_factory.mktemp("summary")
    export_once(node, folder / "export", folder / "data")
    return folder / "export"


@pytest.fixture(scope="module")
def history(root):
    """Its tables."""
    assert replayed(root, root.parent / "history").sound
    return root.parent / "history"


def test_a_cause_says_how_often_how_long_and_what_it_moved(history):
    """The second round of a cooperative rebalance has a line of its own."""
    found = {one.trigger: one for one in summarize(history).by_cause}
    released = found["partitions_released"]
    assert (released.rounds, released.moved, released.minimum_moves) == (1, 2, 2)
    assert (released.total_ms, released.longest_ms) == (40, 40)
    assert found["session_expiry"].longest_ms >= 60_000
    assert sum(one.rounds for one in found.values()) == len(summarize(history).rounds)


def test_moves_of_a_round_without_a_minimum_are_not_held_against_that_of_others():
    """They would look like more than was needed."""
    known = Round("g", 1, "member_left", None, 0, 5, 6, 6)
    (cause,) = _causes([known, known._replace(moved=1, minimum_moves=None)])
    assert (cause.rounds, cause.moved, cause.minimum_moves) == (2, 6, 6)


def test_rounds_that_formed_nothing_are_compared_with_those_that_did(history, monkeypatch):
    """In a modern group epochs are superseded within some ms, as long as others took."""
    formed = Round("g", 1, "member_joined", None, 0, 5, 6, 6)
    superseded = formed._replace(generation=None)
    monkeypatch.setattr(summary, "_rounds", lambda _output: [formed, superseded])
    found = summarize(history)
    assert list(found.longest) == list(found.most_moved) == [superseded, formed]


def test_the_worst_come_first_and_nothing_is_named_that_did_not_happen(history):
    """Five at most; a round that moved nothing is not among those that moved most."""
    found = summarize(history)
    took = [one.duration_ms for one in found.longest]
    assert took == sorted(took, reverse=True)
    assert 0 < len(took) <= 5
    assert found.longest[0].trigger == "session_expiry"
    assert [one.moved for one in found.most_moved] == [4, 4, 2]


def test_a_partition_is_unowned_between_two_owners(history):
    """Two partitions for 940 ms (taken, not given yet); the other two while the round formed."""
    (coop,) = (one for one in summarize(history).unowned if one.group == "<coop>")
    assert (coop.partitions, coop.longest_ms, coop.total_ms) == (4, 740, 2 * 740 + 2 * 40)


def test_members_that_come_and_go_are_counted_by_client(tmp_path):
    """Under a member id of its own each time; who fell silent is told apart."""
    node = FakeNode()
    group = Script(node, "g")
    group.form("a", "b")
    for nonce in (2, 3):
        group.expire(group.member("b", nonce - 1))
        group.join("b", nonce=nonce)
        group.rebalance()
    export_once(node, tmp_path / "export", tmp_path / "data")
    replayed(tmp_path / "export", tmp_path / "history")
    first, second = summarize(tmp_path / "history").churn
    assert (first.client_id, first.sessions, first.expired) == ("b", 3, 2)
    assert (second.client_id, second.sessions, second.expired) == ("a", 1, 0)


class Page(HTMLParser):
    """Which tags a page has, and what it would fetch."""

    def __init__(self):
        super().__init__()
        self.tags, self.fetched = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.fetched += [value for name, value in attrs if name in ("src", "href")]


def test_the_command_ends_with_the_summary_and_writes_it_as_a_page(root, tmp_path):
    """In every form; the page has its pictures, fetches nothing and runs nothing."""
    html = tmp_path / "page.html"
    done = muster("replay", "--input", root, "--to", tmp_path / "out", "--html", html)
    assert done.returncode == 0, done.stderr
    heads = [each.split()[0] for each in done.stdout.split("\n\n")]
    assert heads[2:] == ["CAUSE", "LONGEST-REBALANCE", "MOST-MOVED", "UNOWNED", "MEMBERSHIPS"]
    text = html.read_text("utf-8")
    seen = Page()
    seen.feed(text)
    assert seen.tags.count("svg") == 3
    assert seen.tags.count("table") == 5
    assert not seen.fetched
    assert not {"script", "coop"} & set(seen.tags)
    assert "&lt;coop&gt;" in text
    done = muster("replay", "--input", root, "--to", tmp_path / "again", "--html", html)
    assert (done.returncode, (tmp_path / "again").exists()) == (2, False)
    assert "page.html exists" in done.stderr
    done = muster("replay", "--input", root, "--to", tmp_path / "json", "-o", "json")
    said = json.loads(done.stdout)["summary"]
    assert said["rebalances_by_cause"][0]["trigger"] == "member_joined"
    assert set(said) == {
        "rebalances_by_cause",
        "longest_rebalances",
        "most_moved",
        "unowned",
        "churn",
    }


def test_a_page_of_nothing_says_so_and_one_of_much_is_bounded():
    """An export without a round has a page, too; a dot for each pixel is the most."""
    assert page("nothing", Summary(), ()).count("There was none.") == 3
    rounds = [Round("g", n, "member_joined", "a", 1_000 * n, 10, 0, 0) for n in range(20_000)]
    text = page("much", Summary(rounds=rounds, churn=[Churn("g", "a")]), ())
    assert len(text) < 100_000


FENCE = re.compile(r"^```(?:sql|python) (duckdb|spark|pandas)\n(.*?)^```", re.MULTILINE | re.DOTALL)
QUERIES = FENCE.findall(DOC)


def queries(engine):
    """Those of the docs, in their order, one after the other was run."""
    for name, query in QUERIES:
        if name == engine:
            yield query
            record_run(query)


def test_the_docs_have_five_queries():
    """Two of each engine that speaks SQL, one of pandas."""
    assert sorted(engine for engine, _ in QUERIES) == [*["duckdb"] * 2, "pandas", *["spark"] * 2]


def test_the_queries_of_the_docs_give_what_they_promise(history, monkeypatch):
    """Each as it stands there, in the folder beside the tables; Spark's are in test_engines.py."""
    monkeypatch.chdir(history.parent)
    causes, owners = (duckdb.sql(query).fetchall() for query in queries("duckdb"))
    assert causes[0][0] == "session_expiry"
    assert ("partitions_released", 1, 40, 2, 2) in causes
    assert [row[0] for row in owners] == ["orders"]
    scope: dict[str, object] = {}
    for query in queries("pandas"):
        exec(query, scope)
    assert list(scope["result"]["by"]) == [2]
