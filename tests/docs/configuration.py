"""docs/configuration.md from the code: `make configuration` writes it."""

import ast
import inspect
import re
import textwrap
from itertools import pairwise
from pathlib import Path

from msgspec import NODEFAULT
from msgspec.structs import FieldInfo

from muster import timeouts
from muster.admin.operator_secret import CLEAR_VARIABLE, FILE_VARIABLE
from muster.bounds import (
    CAPACITY_MAX,
    CAPACITY_MIN,
    CLIENT_ID_BYTES_MAX,
    ID_BYTES_MAX,
    MS_MAX,
)
from muster.cli import options
from muster.client import Client
from muster.election.election_state import VALUE_BYTES_MAX
from muster.group.group import Group
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.node.config import (
    CLIENT_PREFIX,
    CLIENTS,
    FIELDS,
    PREFIX,
    Settings,
    is_required,
    takes,
)
from musterd.coordinator.node.timeout_rules import RULES, SETTABLE
from musterd.export.cli import export

TARGET = Path(__file__).parents[2] / "docs" / "configuration.md"
FLAGS = {"peers": "--peer"}
"""Where a flag is not the key with dashes."""
HIDDEN = {"dev"}
"""What `muster dev` sets on its nodes."""
UNITS = {"_ms": "ms", "_bytes": "bytes"}
SESSION = f"{LIMITS.session_timeout_min_ms} to {LIMITS.session_timeout_max_ms}"
ID = f"1 to {ID_BYTES_MAX} bytes"
CLIENT_ID = f"1 to {CLIENT_ID_BYTES_MAX} bytes"
FROM_ONE, FROM_ZERO = f"1 to {MS_MAX}", f"0 to {MS_MAX}"
SDK_BOUNDS = {
    "session_timeout_ms": SESSION,
    "rebalance_timeout_ms": FROM_ONE,
    "request_timeout_ms": FROM_ONE,
    "commit_interval_ms": FROM_ZERO,
    "grace_ms": FROM_ZERO,
    "group_id": ID,
    "group_instance_id": f"none, or {ID}",
    "name": ID,
    "value": f"0 to {VALUE_BYTES_MAX} bytes",
    "client_id": CLIENT_ID,
    "assignment": "`client`, `server`",
    "capacity": f"{CAPACITY_MIN} to {CAPACITY_MAX}",
}
COMPAT = (
    ("bootstrap.servers", "none: it must be given", "", "host:port, ...", "addresses of some nodes; the others are learned."),
    ("group.id", "none: it must be given", "", ID, "the group."),
    ("client.id", "`muster`", "", CLIENT_ID, "the first part of member ids."),
    ("group.instance.id", "none", "", f"none, or {ID}", "a durable name makes a static member."),
    ("client.rack", "none", "", "", "where this member is: for assignors of your own, and its zone with `consumer`."),
    ("group.protocol", "`classic`", "", "`classic`, `consumer`", "who assigns: the members, or with `consumer` the coordinator ([modern.md](modern.md))."),
    ("group.remote.assignor", "none", "", "`uniform`, `range`, `weighted`", "with `consumer`: what this member prefers."),
    ("partition.assignment.strategy", "`range`", "", "", "with `classic`: names, with commas, in order of preference."),
    ("session.timeout.ms", "`10000`", "ms", SESSION, "how long the member may be silent."),
    ("max.poll.interval.ms", "`300000`", "ms", FROM_ONE, "the rebalance timeout, and how long a member may go without `poll`."),
    ("socket.timeout.ms", f"`{timeouts.REQUEST_MS}`", "ms", FROM_ONE, "how long a call may take, all attempts together."),
    ("security.protocol", "`plaintext`", "", "`plaintext`, `ssl`", "how nodes are connected to."),
    ("ssl.ca.location", "none", "", "a path", "with `ssl`: nodes must have a certificate of this authority."),
    ("ssl.certificate.location", "none", "", "a path", "with `ssl`: this client's certificate, where nodes demand one."),
    ("ssl.key.location", "none", "", "a path", "with `ssl`: its key."),
    ("on_commit", "none", "", "a function", "called after each commit, with its error or None and the partitions."),
    ("enable.auto.commit", "`false`", "", "`false`", "nothing is read here, so nobody knows what to commit."),
    ("muster.token", "none", "", "text", "a bearer token (`muster token create`), which is sent over TLS or to loopback alone."),
    ("muster.token.file", "none", "", "a path", "a file with it instead, which is read again when it changes."),
    ("muster.streams", "`true`", "", "`true`, `false`", "whether members' calls to a node share one stream, where it has them."),
)  # fmt: skip
"""Key, default, unit, bounds and meaning of what muster.compat takes."""

HEAD = """\
# Configuration

<!-- Generated from the code by `make configuration`; do not edit. -->

Every setting of nodes but `dev`, and of clients. Names of variables tell whose they are: `MUSTERD_*` is a node's, `MUSTER_*` a client's.

## A node's

`muster serve` takes flags, then variables, then the TOML file of `--config FILE`, then the default: the first that has a
value counts. A key of the file that is no setting is refused. A variable `MUSTERD_*` that is no setting is told of in the log. Nodes
once read `MUSTER_*`: such a variable is refused with its new name. Only {shared}
are a client's still: a node leaves them alone and says so in its log. What a node is (its id, its cluster, its shards) is no setting:
`muster init` wrote it.

"""

TIMES = """\
### Times that go together

`{settable}` are the same on every node. A node whose times break one of these lines does not start;
[timeouts.md](timeouts.md) says why each must hold, and what the other names are.

{rules}

"""

REACH = """\
### Whether clients reach a node

Every `reach_probe_ms` a node connects to the address that clients are told (`advertise`, else `listen`), as a client would: TLS, the
certificate's name and its end are looked at, too. It trusts its own certificate and `tls_ca`, and presents its own
certificate: a node that refuses only that one is reached, since clients have others. After three failures in a row

* it logs a warning with the reason, and one line when it reaches itself again;
* every node shows it: `muster cluster status` (`unreachable`, exit code 5) and `muster_node_reaches_itself` in the metrics;
* it hands its shards to nodes that reach themselves, and gets none back until it does. Where no node does, nothing moves.

It goes on serving whoever reaches it. Only with `ready_needs_reach` is `muster.ready` bound to it, too. On Kubernetes that
takes `publishNotReadyAddresses`, where the name that is advertised exists for ready pods alone.

"""

OF_CLIENTS = """\
## A client's

The commands of `muster` that ask a cluster. A flag wins over its variable.

{commands}
The SDK reads `MUSTER_TLS_*` where a program calls `muster.Tls.from_environment()`, and no other variable: a program says what it wants.

### `muster.Client`

{client}
### `Client.group`

{group}
### `Client.tasks`

{tasks}
### `Client.election`

{election}
### `Group.on_partition`

{handler}
### `muster.compat.Consumer`

Keys of its configuration ([compat.md](compat.md)). Any other key is refused with `InvalidConfig`: a setting that could not be honoured is not
ignored.

{compat}
## The exporter's

Flags of `muster export` ([replay.md](replay.md)).

{export}"""


def _docstrings(cls: type) -> dict[str, str]:
    """The text below each field of a class."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    return {
        before.target.id: " ".join(ast.literal_eval(after.value).split())
        for before, after in pairwise(tree.body)
        if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr)
    }


DOCSTRINGS = _docstrings(Settings)


def document() -> str:
    """The whole page."""
    rows = [_setting(name, field) for name, field in FIELDS.items()]
    columns = ("file key", "variable", "flag", "default", "unit", "bounds", "what it is")
    rules = "\n".join(f"* `{rule}`" for rule in RULES)
    return (
        HEAD.format(shared=", ".join(f"`{CLIENT_PREFIX}{name.upper()}`" for name in CLIENTS))
        + _table(columns, [row for row in rows if row])
        + "\n"
        + TIMES.format(settable="`, `".join(SETTABLE), rules=rules)
        + REACH
        + OF_CLIENTS.format(
            commands=_commands(),
            client=_sdk(Client),
            group=_sdk(Client.group),
            tasks=_sdk(Client.tasks),
            election=_sdk(Client.election),
            handler=_sdk(Group.on_partition),
            compat=_table(
                ("key", "default", "unit", "bounds", "what it is"),
                [[f"`{key}`", *rest] for key, *rest in COMPAT],
            ),
            export=_export(),
        )
    )


def flag(name: str) -> str:
    """A setting's flag of `muster serve`."""
    return FLAGS.get(name, "--" + name.replace("_", "-"))


def _setting(name: str, field: FieldInfo) -> list[str] | None:
    if name in HIDDEN:
        return None
    default = "none: it must be given" if is_required(field) else _shown(field)
    return [
        f"`{name}`",
        f"`{PREFIX}{name.upper()}`",
        f"`{flag(name)}`",
        default,
        _unit(name),
        "[below](#times-that-go-together)" if name in SETTABLE else takes(field),
        DOCSTRINGS[name],
    ]


def _shown(field: FieldInfo) -> str:
    default = field.default_factory() if field.default is NODEFAULT else field.default
    if default is None or default in ("", {}, ()):
        return "none"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _unit(name: str) -> str:
    return next((unit for end, unit in UNITS.items() if name.endswith(end)), "")


def _commands() -> str:
    of_flags = (
        (options.Bootstrap, options.DEFAULT_BOOTSTRAP, "", "host:port, ..."),
        (options.Timeout, options.DEFAULT_TIMEOUT_S, "s", ""),
        (options.Output, "table", "", "`table`, `json`, `jsonl`, `name`"),
    )
    rows = []
    for option, default, unit, bounds in of_flags:
        (info,) = option.__metadata__
        limits = bounds or f"{info.min} to {info.max}"
        flags = ", ".join(f"`{name}`" for name in (info.default, *info.param_decls))
        rows.append([f"`{info.envvar}`", flags, f"`{default}`", unit, limits, info.help])
    files = {
        FILE_VARIABLE: "The nodes' admin secret, for [operators' commands](access.md#the-admin-secret).",
        "MUSTER_TOKEN_FILE": "A bearer token (`muster token create`), which says who asks; `--token-file` wins.",
        "MUSTER_TLS_DIR": "A folder as `muster cert client` makes it, for the three below, each of which wins. With any of the four, connections are TLS.",
        "MUSTER_TLS_CA": "Nodes must have a certificate of this authority.",
        "MUSTER_TLS_CERT": "This client's certificate, where nodes demand one.",
        "MUSTER_TLS_KEY": "Its key.",
    }
    rows += [[f"`{name}`", "", "none", "", "a path", text] for name, text in files.items()]
    clear = "That secret is sent without TLS to other machines, too: whoever listens has it."
    rows.append([f"`{CLEAR_VARIABLE}`", "", "`false`", "", "`true`, `false`", clear])
    return _table(("variable", "flag", "default", "unit", "bounds", "what it is"), rows)


def _export() -> str:
    rows = []
    for name, parameter in inspect.signature(export).parameters.items():
        if name == "output":
            continue
        (info,) = parameter.annotation.__metadata__
        given = parameter.default
        if given is parameter.empty:
            default, bounds = "none: it must be given", "a path"
        elif isinstance(given, bool):
            default, bounds = str(given).lower(), "`true`, `false`"
        else:
            default = "none" if given is None else f"`{given}`"
            bounds = "a path" if given is None else f"at least {info.min}"
        unit = {"mib": "MiB", "gib": "GiB", "s": "s", "days": "days"}.get(name.rpartition("_")[2])
        rows.append(
            [
                f"`--{name.replace('_', '-')}`",
                default,
                unit or "",
                bounds,
                " ".join(info.help.split()),
            ]
        )
    return _table(("flag", "default", "unit", "bounds", "what it is"), rows)


def _sdk(of) -> str:
    """The arguments of a class or method, as its signature and its docstring have them."""
    said = inspect.getdoc(of).partition("Args:\n")[2].partition("\n\n")[0]
    texts = {
        name: " ".join(text.split())
        for name, text in re.findall(
            r"^ {4}(\w+): (.*?)(?=^ {4}\w+: |\Z)", said, re.DOTALL | re.MULTILINE
        )
    }
    rows = []
    for name, parameter in inspect.signature(of).parameters.items():
        if name == "self":
            continue
        given = parameter.default
        default = "none: it must be given" if given is parameter.empty else _plain(given)
        rows.append([f"`{name}`", default, _unit(name), SDK_BOUNDS.get(name, ""), texts[name]])
    return _table(("argument", "default", "unit", "bounds", "what it is"), rows)


def _plain(value) -> str:
    if value is None or value in ("", b"") or not isinstance(value, str | int | float):
        return "none"
    return f"`{value}`"


def _table(columns, rows) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |\n" for line in lines
    )


if __name__ == "__main__":
    TARGET.write_text(document(), "utf-8")
