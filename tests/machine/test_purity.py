"""The machine knows nothing but its input: no clock, randomness, I/O, or order of a set.

It does not depend on the Python that runs it, which may differ while a cluster is upgraded.
"""

import ast
import re
from pathlib import Path

import pytest

import musterd.coordinator.machine
from tests.machine.annotated import NUMBER, Annotated, fields_of, scopes

MACHINE = Path(musterd.coordinator.machine.__file__).parent
FILES = sorted(MACHINE.rglob("*.py"))
FIELDS = fields_of(ast.parse(path.read_text()) for path in FILES)
ALLOWED = {
    "bisect",
    "collections.abc",
    "dataclasses",
    "enum",
    "hashlib",
    "itertools",
    "musterd.invariant",
    "musterd.levels",
    "struct",
    "types",
    "typing",
}
"""What the machine may import."""
BANNED_NAMES = {"hash", "id", "open", "print", "input", "eval", "exec", "float", "set", "vars"}
"""`frozenset` may be asked (`in`), which has no order; iterating one is found below."""

OF_THE_PYTHON = {"ascii", "format", "repr"}
"""What asks the interpreter how something looks."""
OF_ITS_UNICODE = {
    *("capitalize", "casefold", "lower", "swapcase", "title", "upper"),
    *("isalnum", "isalpha", "isdecimal", "isdigit", "isidentifier", "islower"),
    *("isnumeric", "isprintable", "isspace", "istitle", "isupper"),
    *("lstrip", "rsplit", "rstrip", "split", "splitlines", "strip"),
    *("__format__", "__repr__", "__str__", "format", "format_map"),
}
"""Methods that ask its version of Unicode what a character is (which are blanks, too), or `repr`.

`encode`, `decode`, `isascii` and slices do not.
"""
REVIEWED = {"int", "max", "min", "sort", "sorted", "str"}
"""Each use has a line in USES: what it takes has to be the same from every Python."""
USES = {
    "modern/classic_members": {
        "min(told)": "ints",
        "sorted(dict.fromkeys(command.subscribed_topics))": "names, by code points",
        "max(current.epoch, changed.epoch if changed is not None and plans else 0)": "ints",
    },
    "modern/consumer_protocol": {
        "max(numbers)": "ints",
        "sorted(by_topic)": "names, by code points",
        "sorted(by_topic[topic])": "ints",
    },
    "modern/colocation": {
        "one.split(',')": "at commas, which no Unicode moves",
        "text.split(';')": "at semicolons, which no Unicode moves",
        "sorted((','.join(sorted(topics)) for topics in sets))": "ASCII names",
        "sorted(topics)": "ASCII names",
        "{topic}": "an ASCII name",
        "{count}": "an int",
        "{counts}": "names and ints",
        "{self.first}": "text",
        "{self.apart}": "an int",
        "{self.absent}": "text",
        "max(one.counts.values(), default=0)": "ints",
    },
    "modern/weights": {
        "text.split(';')": "at semicolons, which no Unicode moves",
        "sorted(own)": "names of topics, by code points, or ints",
        "sorted(stretches)": "ints",
        "int(text)": "of ASCII digits alone",
        "int((decimals + '0' * _DECIMALS)[:_DECIMALS])": "of ASCII digits alone",
        "min(stretch.last + 1, count)": "ints",
        "str(limits.topic_max_partitions)": "of an int",
        "str(WEIGHT_MAX // UNIT)": "of an int",
        "str(UNIT + rest)": "of an int",
        "str(UNIT + rest)[1:].rstrip('0')": "of zeros alone",
        "str(whole)": "of an int",
        "{topic}": "an ASCII name",
        "{after.first}": "an int",
        "{self.first}": "an int",
        "{self.last}": "an int",
        "{stretch.where}": "text",
        "{assignor}": "a word of our own",
        "{beyond[0]}": "text",
        "{others}": "text",
        "{count}": "an int",
        "{whole}": "an int",
        "{decimals}": "text",
    },
    "modern/conversion": {
        "{MIGRATION_POLICY}": "a name of our own",
        "{policy}": "a word of our own",
        "max(last.get(topic, 0), partition + 1)": "ints",
        "max(tokens)": "ints",
        "max(group.fence, group.generation)": "ints",
        "max([consumer.generation, *(grant.token for grant in consumer.grants())])": "ints",
        "sorted(dict.fromkeys(member.subscribed_topics))": "names, by code points",
    },
    "modern/decide_heartbeat": {
        "max(group.generation, env.generation_floor)": "ints",
        "min(command.back_in_ms, env.limits.away_max_ms)": "ints",
        "sorted(dict.fromkeys(topics))": "names, by code points",
        "sorted(group.pending)": "ids, by code points",
    },
    "modern/decide_target": {
        "{partitions}": "an int",
        "sorted(dict.fromkeys(partitions))": "ints",
        "sorted(modern.behind)": "ints",
        "sorted(consumers, key=lambda one: not one.is_away)": "yes or no, and stable",
    },
    "modern/departures": {
        "max(epoch, env.generation_floor)": "ints",
        "max(changed.epoch, group.fence)": "ints",
        "max((one.generation for one in members))": "ints",
        "min((one.generation for one in members))": "ints",
        "max(group.generation, group.fence, env.generation_floor, used)": "ints",
    },
    "modern/evolve_modern": {
        "max(group.generation, group.fence)": "ints",
        "{type(event).__name__}": "names of our own",
        "sorted(dict.fromkeys((*names, *added)))": "names, by code points",
        "sorted(modern.patterns)": "names, by code points",
        "max(group.topics_version, event.topics_version)": "ints",
    },
    "modern/group": {
        "sorted(by_topic[topic])": "ints",
        "sorted(by_topic)": "names, by code points",
        "sorted(modern.members.values(), key=lambda member: member.join_seq)": "ints",
        "sorted({**self._assigned, **self._revoking})": "names, by code points",
        "sorted((*active, *revoking))": "ints",
        "sorted(tokens)": "ints",
        "max(began, self._renewed)": "ints",
        "min(numbers)": "ints",
        "max(one, self._renewed)": "ints",
        "max(began, self.renewed)": "ints",
    },
    "modern/invariants": {
        "max(token, consumer.renewed)": "ints",
        "sorted(names)": "names, by code points",
        "sorted(topics)": "names, by code points",
    },
    "modern/reconciler": {
        "sorted(consumer.assigned)": "names, by code points",
        "sorted(late)": "ints, no one twice",
        "sorted(self.missed)": "ints",
        "sorted(tokens)": "names, by code points",
        "sorted(tokens[topic].items())": "ints, no key twice",
        "sorted(waiting)": "ints",
        "sorted(wanted)": "names, by code points",
        "sorted(wanted[topic])": "ints",
        "max(epoch, consumer.epoch)": "ints",
        "max(one.values())": "ints",
    },
    "modern/refusals": {
        "{what}": "words of our own",
        "{CAPACITY_MAX}": "an int",
        "{known}": "names of our own",
    },
    "modern/spec": {
        "sorted(modern.topics_of(consumer))": "names, by code points",
        "str(seq)": "of an int",
    },
    "modern/topics": {
        "sorted({**read, **modern.topics})": "names, by code points",
        "min((one - 1 for one in former if one > version), default=last)": "ints",
        "came.sort(key=lambda one: (changed.get(one.topic, 0), one.topic))": "ints, then names",
        "max(0, limit - len(gone))": "ints",
        "max(version, changed.get(came[-1].topic, 0))": "ints",
        "sorted((*gone[:limit], *came))": "names, by code points, each once",
        "sorted(came, key=lambda one: _order(known.get(one.topic, 0), one.partitions))": (
            "ints, and stable"
        ),
    },
    "modern/unowned": {
        "sorted(modern.topics.items())": "names, by code points, each once",
        "max(held)": "ints",
        "sorted(found, key=lambda one: (one.topic, one.partitions[0]))": "names, then ints",
    },
    "records/modern_values": {
        "sorted(modern.behind)": "ints",
        "sorted(tokens)": "names, by code points",
        "{count}": "an int",
    },
    "access": {
        "sum((_bit(one, deny=False) for one in by))": "ints",
    },
    "decide/access": {
        "sorted(gone)": "ids, by code points",
    },
    "decide/quotas": {
        "{VALUE_MAX}": "an int",
        "sum((one.of not in state.quotas for one in changes))": "flags",
        "sum((not one.value for one in changes))": "flags",
    },
    "decide/config": {
        "sorted((*numbers, *texts))": "names of our own",
        "sorted(written.items())": "names are keys, so texts are never compared",
        "{name}": "a name of our own",
        "{after.get(name, 'not set any more')}": "text",
        "{TEXTS[name].what}": "text of our own",
        "{wrong}": "text",
        "{', '.join(words)}": "names of our own",
        "', '.join(words)": "names of our own",
        "sorted(after.items())": "names are keys, so values are never compared",
        "int(value)": "of ASCII digits alone: it is looked at first",
        "str(high)": "of an int",
        "{low}": "an int",
        "{high}": "an int",
        "', '.join(known)": "names of our own",
        "max(value, low)": "ints",
        "min(max(value, low), high)": "ints",
    },
    "decide/commit": {
        "{since}": "an int",
        "{now}": "an int",
        "{token}": "an int",
        "{expected}": "an int",
        "{commit_seq}": "an int",
        "min(partitions)": "ints",
        "min(offsets)": "ints",
        "min(partitions.offsets)": "ints",
        "min(partition, offset, start_offset or 0)": "ints",
    },
    "decide/delete": {
        "sorted(group.pending)": "ids, by code points",
        "max(stored.wall_ms, self._group.emptied_wall_ms)": "ints",
    },
    "decide/audit": {
        "{BATCH}": "an int",
        "{ENTRY_BYTES_MAX}": "an int",
        "sum(map(_size, entries.values()))": "ints",
    },
    "decide/level": {"{level or LAST_UNNAMED}": "an int"},
    "decide/shard": {
        "{known}": "an int",
        "str(node)": "of an int",
        "min(command.wall_ms, wall_ms)": "ints",
        "sorted(known.items())": "numbers of nodes are keys, so levels are never compared",
        "{', '.join(behind)}": "numbers, as text",
        "', '.join(behind)": "numbers, as text",
    },
    "decide/topics": {"{command.partitions}": "an int"},
    "decide/timer": {"min(env.limits.initial_delay_ms, group.remaining_ms)": "ints"},
    "records/encoding": {
        "{end}": "an int",
        "{version}": "an int",
        "{len(self._data) - self._at}": "an int",
    },
    "evolve_history": {
        "sorted(group.pending)": "ids, by code points",
        "max(0, len(group.rebalances) + 1 - HISTORY_ROUNDS)": "ints",
    },
    "evolve": {
        "max(group.fence, group.generation)": "ints",
        "{type(event).__name__}": "text; of an error",
        "{group.phase}": "a StrEnum is its value; of an error",
        "{phase}": "a StrEnum is its value; of an error",
    },
    "decide/fencing": {
        "max(env.generation_floor, env.fence_floor)": "ints",
        "max(group.fence, group.generation, floor, taken)": "ints",
    },
    "history": {
        "{error}": "a text of our own; of an error",
        "sorted(moves.count.items())": "numbers of reasons, each once",
        "{seq}": "an int",
    },
    "invariants": {
        "{group.phase}": "a StrEnum is its value; of an error",
        "{group.timer}": "of an error, which no replica keeps",
        "{number}": "an int",
        "sorted(group.rebalances)": "numbers of rounds",
        "max(tokens)": "ints",
        "min(tokens)": "ints",
    },
    "decide/protocols": {
        "max(votes, key=votes.__getitem__)": "the first of those with the most votes"
    },
    "plan/differences": {
        "sorted({**dict.fromkeys(spec.last), **dict.fromkeys(target)})": "names, by code points",
        "max(len(last), len(now))": "ints",
    },
    "plan/fewest_moves": {
        "min(lot.free, 1 if lot.fillers else lot.free, self.room[at])": "ints",
        "min(price, reached)": "ints",
        "max(0, -self.room[source])": "ints",
        "min(self._supply(source), self.room[target])": "ints",
        "min(amount, self._arc(path[at], path[at + 1])[1])": "ints",
    },
    "plan/loads": {
        "sorted(((load, -at) for at, load in enumerate(self.load)))": "ints, no position twice",
        "min(search.reached, key=lambda at: (self.load[at], at))": "ints, no position twice",
        "min(amount, self.has[giver][number])": "ints",
    },
    "plan/pace": {"min(first + CHUNK, count)": "ints"},
    "plan/planning": {"sorted(found)": "names, by code points"},
    "plan/problem": {
        "sorted(spec.members, key=lambda m: (not m.instance_id, m.instance_id, m.member_id))": (
            "no id twice, by code points"
        ),
        "sorted(turns)": "no position twice",
        "sorted(names)": "names, by code points",
        "sorted(readers)": "names, by code points",
        "sorted(positions)": "ints, no position twice",
        "sorted((z for z in common if z in by_zone and all((z in one for one in lists))))": (
            "names, by code points"
        ),
        "sorted((name for name in dict.fromkeys(others) if name in readers and name != topic))": (
            "names, by code points"
        ),
        "sorted((at for number in common for at in kinds[number].present))": "ints",
        "sorted((at for number in common for at in kinds[number].away))": "ints",
        "max((spec.topics[name] for name in topics))": "ints",
        "sorted(by_kinds.values(), key=lambda pool: (len(pool.readers), pool.name))": (
            "no name twice"
        ),
        "max(shares, key=shares.__getitem__, default=NOBODY)": (
            "the first of those with the most, in the order of topics"
        ),
    },
    "plan/uniform": {"sorted(room)": "ints, no position twice"},
    "plan/weighted": {
        "max(self._heaviest, unit[0])": "ints",
        "min(pool.least or unit[0], unit[0])": "ints",
        "sorted(sizes, reverse=True)": "ints",
        "min((weight for weight, _, _ in units))": "ints",
        "sorted(((self.lacks[at], -at) for at in pool.readers))": "ints, no position twice",
    },
    "quotation": {
        "{inside}": "text",
        "_RUNS.split()": "blanks of our own",
        "int(run, 36)": "ASCII digits of our own",
    },
    "records/values": {
        "sorted(config.items())": "names are keys, so values are never compared",
        "sorted(texts.items())": "names are keys, so texts are never compared",
        "{error}": "a text of our own; of an error",
    },
    "records/group_records": {
        "(self._group.digest + digest) % DIGEST_MODULUS": "ints",
        "(group.digest + gained) % DIGEST_MODULUS": "ints",
        "max(consumer.size, after)": "ints",
        "min(consumer.size, after)": "ints",
        "sorted(group.members.values(), key=lambda member: member.join_seq)": "no number twice",
        "sorted(consumer.revoking)": "names, by code points",
        "sorted(modern.patterns)": "texts, by code points",
        "sorted({**consumer.assigned, **consumer.revoking})": "names, by code points",
        "sorted(modern.target)": "names, by code points",
        "sorted(modern.zones)": "names, by code points",
    },
    "decide/requests": {
        "max(sizes)": "ints",
        "{sum(sizes)}": "an int",
        "{weight}": "an int",
        "{wanted.partition}": "an int",
        "{at}": "an int",
        "min(wanted.partition, wanted.offset, start)": "ints",
        "min(wanted.partition, wanted.offset)": "ints",
    },
    "decide/rebalance_rounds": {
        "sorted([*present, put], key=lambda member: member.join_seq)": "no number twice",
        "max((member.rebalance_timeout_ms for member in members), default=0)": "ints",
        "max(timeout_ms - delay_ms, 0)": "ints",
        "max(group.generation, env.generation_floor)": "ints",
        "max((member.token for member in members))": "ints",
    },
    "records/shard_records": {
        "(self.hashed + gained) % DIGEST_MODULUS": "ints",
        "(state.hashed + digest) % DIGEST_MODULUS": "ints",
        "count % slice_records": "ints",
        "{level}": "an int; of an error",
        "{LEVEL}": "an int; of an error",
    },
    "shard_state": {
        "sorted((key for key, _ in group_records(group)))": "bytes",
        "(state.hashed + change) % DIGEST_MODULUS": "ints",
        "(group.digest + change) % DIGEST_MODULUS": "ints",
        "(state.hashed - group.digest) % DIGEST_MODULUS": "ints",
        "(state.hashed - gone) % DIGEST_MODULUS": "ints",
        "(group.digest - gone) % DIGEST_MODULUS": "ints",
        "(state.hashed + _digest_change(key, old, new)) % DIGEST_MODULUS": "ints",
        "(state.hashed + digest) % DIGEST_MODULUS": "ints",
        "(group.digest + digest) % DIGEST_MODULUS": "ints",
        "{sub}": "an int; of an error",
        "{type(command).__name__}": "text; of an error",
        "max((event.generation for event in deleted), default=0)": "ints",
        "max((event.fence for event in deleted), default=0)": "ints",
        "max(generation, fence)": "ints",
        "max(entry.topics_version, state.dropped_version)": "ints",
    },
    "zones": {
        "one.split(',')": "at commas, which no Unicode moves",
        "text.split(';')": "at semicolons, which no Unicode moves",
        "sorted(dict.fromkeys(zones))": "names of ASCII, by code points",
    },
    "state": {
        "max(member.token, self.token or self.generation)": "ints",
        "min(timers, key=lambda one: (timers[one][0], one))": "deadlines, then ids, by code points",
    },
}
"""By file, what was read by a person and is the same from every Python, and why."""


def imports(tree: ast.AST):
    """Every imported module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


def offences(source: str) -> list[str]:
    """What in this source could make two replicas differ."""
    tree = ast.parse(source)
    found = [
        f"imports {name}"
        for name in imports(tree)
        if name not in ALLOWED and not name.startswith("musterd.coordinator.machine")
    ]
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) if name in BANNED_NAMES:
                found.append(f"line {node.lineno}: {name}")
            case ast.Constant(value=float()) | ast.BinOp(op=ast.Div()):
                found.append(f"line {node.lineno}: a float")
            case ast.Assert():
                found.append(f"line {node.lineno}: assert")
            case ast.For(iter=what) | ast.comprehension(iter=what) | ast.Starred(value=what):
                if _is_set(what):
                    found.append(f"line {what.lineno}: the order of a set")
            case ast.Call(func=ast.Name(id=name), args=[what, *_]):
                if name in {"tuple", "list", "next", "iter", "sum", "map"} and _is_set(what):
                    found.append(f"line {node.lineno}: the order of a set")
            case ast.SetComp():
                found.append(f"line {node.lineno}: a set comprehension")
            case _:
                pass
    return found


def of_its_python(source: str, reviewed: dict[str, str]) -> list[str]:
    """What in this source another version of Python could answer otherwise."""
    tree = ast.parse(source)
    types = _types(tree)
    found = []
    for scope, nodes in scopes(tree):
        known = Annotated(tree, scope, FIELDS)
        found += [
            f"line {node.lineno}: {what}"
            for node in nodes
            if (what := _in_scope(node, known, reviewed) or _anywhere(node, types, reviewed))
        ]
    return found


def _in_scope(node: ast.AST, known: Annotated, reviewed: dict[str, str]) -> str:
    """What is wrong with how a value is made text; "" for nothing."""
    match node:
        case ast.FormattedValue(conversion=conversion) if chr(max(conversion, 0)) in "ra":
            return f"!{chr(conversion)}"
        case ast.FormattedValue(value=value):
            text = ast.unparse(value)
            if not (known.kind(value) or text in reviewed or f"{{{text}}}" in reviewed):
                return f"{{{text}}} may be neither a number nor text"
            if node.format_spec is not None and not _is_of_integers(node.format_spec):
                return f"{{{text}:...}}"
        case ast.BinOp(left=left, op=ast.Mod()) | ast.AugAssign(target=left, op=ast.Mod()):
            text = ast.unparse(node)
            if known.kind(left) != NUMBER and not _takes_integers(left):
                return "" if text in reviewed else f"{text}: % of what is no integer"
        case _:
            pass
    return ""


def _anywhere(node: ast.AST, types: set[ast.AST], reviewed: dict[str, str]) -> str:
    """What is wrong with a name or a call wherever it stands; "" for nothing."""
    match node:
        case ast.Name(id=name, ctx=ast.Load()) if name in OF_THE_PYTHON:
            return name
        case ast.Name(id=name, ctx=ast.Load()) if name in REVIEWED and node not in types:
            return f"{name} is not called here"
        case ast.Attribute(attr=name) if name in OF_ITS_UNICODE and node not in types:
            return f".{name} is not called here"
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if (
            name in REVIEWED | OF_ITS_UNICODE
        ):
            if ast.unparse(node) not in reviewed:
                return f"{ast.unparse(node)} was not reviewed"
        case ast.Call(func=ast.Attribute(attr="encode" | "decode"), args=args, keywords=keywords):
            if args or keywords:
                return f"{ast.unparse(node)}: a codec with its own tables"
        case _:
            pass
    return ""


def _types(tree: ast.AST) -> set[ast.AST]:
    """Nodes that name a type or are called: a call is looked at as a whole."""
    roots: list[ast.AST | None] = []
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        match node:
            case (
                ast.arg(annotation=root)
                | ast.AnnAssign(annotation=root)
                | ast.FunctionDef(returns=root)
                | ast.Subscript(slice=root)
                | ast.MatchClass(cls=root)
                | ast.Assign(value=ast.BinOp(op=ast.BitOr()) as root)
                | ast.Call(func=ast.Name(id="isinstance"), args=[_, root])
            ):
                roots.append(root)
            case ast.Attribute(value=ast.Name() as value):
                found.add(value)
            case _:
                pass
        if isinstance(node, ast.Call):
            found.add(node.func)
    for root in roots:
        nodes = list(ast.walk(root)) if root is not None else []
        if not any(isinstance(node, ast.Call) for node in nodes):
            found.update(nodes)
    return found


def _takes_integers(node: ast.AST) -> bool:
    """Text before a `%` that takes integers and bytes alone."""
    match node:
        case ast.Constant(value=str(text)):
            return re.search("%[^d%]", text) is None
        case ast.Constant(value=bytes(text)):
            return re.search(rb"%[^bd%]", text) is None
        case _:
            return False


def _is_of_integers(spec: ast.expr) -> bool:
    """Hexadecimal or decimal with a width; `n` asks the locale."""
    match spec:
        case ast.JoinedStr(values=[ast.Constant(value=str(text))]):
            return re.fullmatch("[0-9]*[dx]", text) is not None
        case _:
            return False


def _is_set(node: ast.AST) -> bool:
    """A set display, a frozenset, or dict views combined with set operators."""
    match node:
        case ast.Set() | ast.SetComp() | ast.Call(func=ast.Name(id="frozenset" | "set")):
            return True
        case ast.BinOp(op=ast.BitAnd() | ast.BitOr() | ast.BitXor() | ast.Sub(), left=left):
            return isinstance(left, ast.Call) and isinstance(left.func, ast.Attribute)
        case ast.Name(id=name):
            return name == "_RETRIABLE"
        case _:
            return False


def _name(path):
    return path.relative_to(MACHINE).with_suffix("").as_posix()


def test_every_room_of_the_machine_is_looked_at():
    """No file of a folder below is left out, and no reviewed use is of a file that is gone."""
    names = {_name(path) for path in FILES}
    assert {"state", "decide/join", "records/values"} <= names
    assert set(USES) <= names


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_nothing_in_the_machine_can_make_replicas_differ(path):
    """The rules arch-3.1 and arch-3.2."""
    assert offences(path.read_text()) == []


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_nothing_in_the_machine_depends_on_the_python_that_runs_it(path):
    """One Python's `repr` of a topic's name was in the reason of a round, and so in the digest."""
    assert of_its_python(path.read_text(), USES.get(_name(path), {})) == []


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_what_was_reviewed_is_there(path):
    """A line that excuses nothing could excuse what comes later."""
    text = ast.unparse(ast.parse(path.read_text()))
    assert [use for use in USES.get(_name(path), {}) if use not in text] == []


@pytest.mark.parametrize(
    "source",
    [
        "x = f'topic {y!r}'",
        "x = f'topic {y!a}'",
        "x = repr(y)",
        "x = map(repr, y)",
        "x = f'topics {[y]}'",
        "x = f'{(y, z)}'",
        "x = y.encode('ascii', 'namereplace')",
        "x = ascii(y)",
        "x = format(y)",
        "x = '%s' % y",
        "x = '%d %r' % y",
        "x = b'%a' % y",
        "x = f'{y}' % z",
        "x = '{!r}'.format(y)",
        "x = y.casefold()",
        "x = map(str.upper, y)",
        "x = y.isprintable()",
        "x = y.isidentifier()",
        "x = y.strip()",
        "x = y.split()",
        "x = y.__repr__()",
        "x = sorted(y)",
        "y.sort()",
        "x = max(y)",
        "x = int(y)",
        "x = str(y)",
        "x = f'{command.topics}'",
        "x = f'{command.partitions}'",
        "x = f'{group.phase}'",
        "x = f'{error}'",
        "x = f'{error.__class__}'",
        "x = f'{y[0]}'",
        "x = f'{y + z}'",
        "def x(*y: int): return f'{y}'",
        "def x(y: int, z: list[int]): return f'{y} {z}'",
        "def x(y: int):\n for y in (1, ()): z = f'{y}'",
        "x = f'{1:n}'",
        "x = f'{1:{y}}'",
        "x = fmt % y",
        "x = fmt() % y",
        "x = b'%a'\nz = x % y",
        "x %= y",
        "x = ','.join(map(str, y))",
        "x = map(sorted, y)",
        "x = y[z(str)]",
        "x = y | z(str)",
        "x = min\ny = x(z)",
        "x = y.encode('idna')",
        "x = y.encode(errors='namereplace')",
        "x = y.decode(encoding='unicode_escape')",
    ],
)
def test_the_check_of_what_pythons_differ_in_finds_it(source):
    """Each is one of the ways."""
    assert of_its_python(source, {}) != []


@pytest.mark.parametrize(
    "source", ["import json", "import unicodedata", "import re", "import locale", "x = hash(y)"]
)
def test_modules_that_differ_between_pythons_are_not_imported(source):
    """None of them is on the list."""
    assert offences(source) != []


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from datetime import datetime",
        "from os import environ",
        "import musterd.coordinator.codec",
        "x = hash('a')",
        "x = 1 / 2",
        "x = 0.5",
        "x = [y for y in {1, 2}]",
        "for y in frozenset(z): pass",
        "x = next(iter({1}))",
        "x = [*(a.keys() & b.keys())]",
        "x = set(y)",
        "assert x",
    ],
)
def test_the_check_finds_what_it_looks_for(source):
    """A check that cannot fail proves nothing."""
    assert offences(source) != []


def test_what_was_reviewed_excuses_no_other_call_of_the_method():
    """Of two calls in a file a person has read one."""
    reviewed = {"_RUNS.split()": "blanks of our own"}
    assert of_its_python("x = _RUNS.split()", reviewed) == []
    assert of_its_python("x = y.split()", reviewed) != []
    assert of_its_python("x = map(str.split, y)", reviewed) != []


@pytest.mark.parametrize(
    "source",
    [
        "x = f'topic {quoted(y)}: {len(z)}'",
        "def x(y: int, z: str): return f'{y}{z[:4]}' + f'{y:04x}'",
        "def x(y: int): return y % z",
        "x = b'%d:%b' % (1, y)",
        "x = f'{limits.id_max_bytes} bytes'",
        "x: tuple[str, int] | None = None",
        "x = isinstance(y, int)",
        "x = y.encode()",
    ],
)
def test_what_is_the_same_from_every_python_needs_no_review(source):
    """Else a list of excuses would be read by nobody."""
    assert of_its_python(source, {}) == []
