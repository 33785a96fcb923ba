"""The generated parts of docs/chaos.md: `make chaos-doc` writes them."""

import re
from pathlib import Path

from musterd.chaos.faults import catalog
from musterd.chaos.mutants import unit
from musterd.chaos.mutants.builds import PROCESS_BUILDS
from musterd.chaos.mutants.hunt import published_cold
from musterd.chaos.report import bugs
from musterd.chaos.report.invariants import INVARIANTS
from musterd.chaos.run.hunt_scenarios import SOUGHT
from musterd.chaos.workloads import catalog as workloads

ROOT = Path(__file__).parents[3]
TARGET = ROOT / "docs" / "chaos.md"
NEEDS = {
    "clock": "Linux, a C compiler",
    "disk": "root, loop devices",
    "limits": "root, control groups",
    "links": "network namespaces",
    "state_limit": "nodes of the run's own",
}
"""What each capability takes, in words."""


def _cell(text):
    return text.replace("|", "\\|").replace("\n", " ")


def _table(columns, rows):
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def bug_table(rows):
    """A table per layer."""
    found = ", ".join(f"{name} {count}" for name, count in bugs.by_finder(rows).items())
    parts = [f"{len(rows)} in all. Found by: {found}."]
    for layer, title in bugs.LAYERS.items():
        mine = [bug for bug in rows if bug.layer == layer]
        if not mine:
            continue
        parts.append(f"### {title}: {len(mine)}")
        cells = [
            [
                bug.id,
                f"**{bug.title}.** {bug.symptom}",
                bug.cause,
                f"{bug.finder}: {bug.found_by}",
                f"`{bug.test}`",
                bug.mended,
            ]
            for bug in mine
        ]
        columns = ["id", "what a user would have seen", "cause", "found by", "test", "mended"]
        parts.append(_table(columns, cells))
    return "\n\n".join(parts)


def invariant_table():
    """All promises; those that wait say for what."""
    rows = [
        [
            one.id,
            f"**{one.title}.** {one.meaning}"
            + (f" *Does not apply yet: waits for {one.waits_for}.*" if one.waits_for else ""),
        ]
        for one in INVARIANTS
    ]
    return _table(["id", "promise"], rows)


def _needs(needs):
    words = [word for need in sorted(needs) for word in NEEDS[need].split(", ") if word]
    return ", ".join(dict.fromkeys(words)) or "-"


def fault_table():
    """Every kind in the registry."""
    rows = [
        [
            f"`{kind}`",
            fault.title,
            "stays" if fault.keeps_quorum else "is lost",
            _needs(fault.needs),
        ]
        for kind, fault in catalog.kinds().items()
    ]
    return _table(["kind", "what is done", "majority", "needs"], rows)


DISTURBED = {
    "kill": "kill -9, and started again",
    "restart": "told to end, and started again",
    "pause": "SIGSTOP, and SIGCONT later",
}
"""What is done to a worker's process, in words."""


def workload_table():
    """All that `--workload` takes, and what every run has besides."""
    setting = workloads.Setting("group", "topic", 3, 16, Path("folder"))
    always = len(workloads.plan((), setting).jobs)
    rows = []
    for name in workloads.names():
        jobs = workloads.plan((name,), setting).jobs
        mine = [job for job in jobs if job.name.startswith(f"{name}-")]
        assert len(mine) + always == len(jobs), name
        disturbed = [DISTURBED[job.disturbed.how] for job in mine if job.disturbed]
        counted = [f"{disturbed.count(how)}: {how}" for how in dict.fromkeys(disturbed)]
        rows.append([f"`{name}`", workloads.title(name), str(len(mine)), "; ".join(counted) or "-"])
    rows += [[f"{name} (always)", title, "1", "-"] for name, title in workloads.OTHERS.items()]
    return _table(["workload", "what it does", "processes", "disturbed of them"], rows)


def hunt_table():
    """The builds that real servers are, by what each has to be caught, and who meets none."""
    rows = [
        [
            f"`{build}`",
            PROCESS_BUILDS[build].rule.rstrip("."),
            sought.world,
            ", ".join(sorted(sought.promises, key=_number))
            + (" (all of them)" if sought.all_of_them else ""),
        ]
        for build, sought in sorted(SOUGHT.items())
    ]
    named = {one for sought in SOUGHT.values() for one in sought.promises}
    never = [one.id for one in INVARIANTS if not one.waits_for and one.id not in named]
    table = _table(["build", "what it does wrong", "schedule", "caught by any of"], rows)
    alone = ", ".join(never) or "none"
    where = "On made-up histories alone (`tests/chaos/check`), no build being named for them"
    return f"{table}\n\n{where}: {alone}."


def unit_table():
    """The builds that unit tests catch."""
    rows = [
        [
            f"`{name}`",
            PROCESS_BUILDS[name].rule.rstrip("."),
            ", ".join(dict.fromkeys(f"`{test.partition('[')[0]}`" for test in sought.promises)),
        ]
        for name, sought in sorted(unit.SOUGHT.items())
    ]
    return _table(["build", "what it does wrong", "caught by all of"], rows)


def _number(invariant):
    return int(invariant[1:])


def cold_table():
    """What planted bugs took that are caught by a later seed than the first."""
    found = published_cold()
    first = found.mutants[0]
    cells = [
        [f"`{one.name}`", one.world, str(one.tried), f"{one.seconds:.0f}", one.what]
        for one in found.mutants
    ]
    table = _table(["build", "scenario", "seeds", "seconds", "caught by"], cells)
    longest = f"Longest: `{first.name}`, {first.tried} seeds, {first.seconds:.0f} s."
    return f"Measured on {found.build.dated}. {longest}\n\n{table}"


PARTS = {
    "workloads": workload_table,
    "hunts": hunt_table,
    "unit": unit_table,
    "cold": cold_table,
    "bugs": lambda: bug_table(bugs.read()),
    "invariants": invariant_table,
    "faults": fault_table,
}


def renewed(text):
    """The document with each generated part as it has to be."""
    for name, make in PARTS.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        if len(pattern.findall(text)) != 1:
            raise ValueError(f"{TARGET} has not exactly one part {name!r}")
        made = f"{begin}\n<!-- Generated by `make chaos-doc`; do not edit. -->\n\n{make()}\n\n{end}"
        text = pattern.sub(lambda _, made=made: made, text)
    return text


if __name__ == "__main__":
    TARGET.write_text(renewed(TARGET.read_text("utf-8")), "utf-8")
