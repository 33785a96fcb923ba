"""What is wrong with a backup, as the end of a command."""

from collections.abc import Iterator
from contextlib import contextmanager

from muster.cli.errors import CommandError, ExitCode
from musterd.backup.errors import ArchiveError, BackupError


@contextmanager
def told(next_step: str, *, unsound: bool = False) -> Iterator[None]:
    """Within this, what is wrong with a backup ends the command.

    `unsound`: a damaged one exits 5.
    """
    try:
        yield
    except ArchiveError as error:
        code = ExitCode.UNHEALTHY if unsound else ExitCode.ERROR
        raise CommandError(str(error), next_step=next_step, exit_code=code) from error
    except BackupError as error:
        raise CommandError(str(error), next_step=next_step, exit_code=ExitCode.ERROR) from error
