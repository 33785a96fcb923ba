"""`python -m musterd.chaos.mutants.serve BUILD -- serve ...`: the `muster` command, one rule short.

For suites that hunt a broken build with real processes. The patch is in place before the server is
imported by anything else; a name that is no build ends the process with exit code 2.
"""

import sys
from typing import NoReturn

from muster.cli import main as muster
from muster.cli.errors import CommandError, ExitCode, note, report
from musterd.chaos.mutants.builds import PROCESS_BUILDS
from musterd.coordinator import host


def _run_here(module: str, argument: str) -> NoReturn:
    """Run the node in this process, where the patch is: `muster serve` becomes another program."""
    del module
    from musterd.coordinator.node.config import Settings  # noqa: PLC0415  # after the patch
    from musterd.coordinator.node.serve import run_node  # noqa: PLC0415  # after the patch

    run_node(Settings.decode(argument))
    sys.exit()


def main(arguments: list[str]) -> None:
    """Install the build that is named first, then run `muster` with what follows `--`."""
    name, rest = (arguments[0] if arguments else ""), arguments[1:]
    build = PROCESS_BUILDS.get(name)
    if build is None or rest[:1] != ["--"]:
        report(
            CommandError(
                f"no such build: {name!r}" if build is None else "`--` is missing after the build",
                next_step="python -m musterd.chaos.mutants.serve BUILD -- serve ...; builds: "
                + ", ".join(sorted(PROCESS_BUILDS)),
                exit_code=ExitCode.USAGE,
            )
        )
        sys.exit(int(ExitCode.USAGE))
    build.install()
    host.become = _run_here
    note(f"this is a broken build on purpose: {name}. {build.rule}")
    muster(rest[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
