"""What the timer and the CronJob that take a backup a day run, and what systemd says of it.

`test_backup_job.py` runs the CronJob with the real `muster`.
"""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "backup"


def of_service():
    """The shell's arguments in the unit."""
    unit = (FOLDER / "muster-backup.service").read_text()
    return shlex.split(re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)[1])


def of_job():
    """The shell's arguments in the CronJob."""
    *_, job = yaml.safe_load_all((FOLDER / "cronjob.yaml").read_text())
    [container] = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    return container["command"] + container["args"]


@pytest.mark.parametrize("command", [of_service(), of_job()], ids=["service", "job"])
@pytest.mark.parametrize("fails", ["", "--to", "verify"])
def test_what_is_taken_is_verified_and_a_failure_is_one(tmp_path, command, fails):
    """With a `muster` that says how it is called."""
    program = tmp_path / "muster"
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> {tmp_path}/calls\n'
        f'[ -z "{fails}" ] || case "$*" in *{fails}*) exit 1;; esac\n'
        "echo /backups/one\n"
    )
    program.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        command, env={"PATH": path, "BACKUPS": "/backups"}, capture_output=True, check=False
    )
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[0] == "cluster backup --to /backups -o name"
    assert calls[1:] == ([] if fails == "--to" else ["cluster backup verify /backups/one"])
    assert (done.returncode == 0) == (not fails)


@pytest.mark.deploy
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path):
    """Neither with the service nor with the timer that starts it."""
    program = shutil.which("systemd-analyze")
    assert program, "install Debian's package systemd: this needs its systemd-analyze"
    for name in ("muster-backup.service", "muster-backup.timer"):
        shutil.copy(FOLDER / name, tmp_path)
    units = [tmp_path / "muster-backup.service", tmp_path / "muster-backup.timer"]
    done = subprocess.run([program, "verify", *units], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_page_that_installs_the_units_makes_their_folder():
    """The service's user cannot, and without it no backup can be written."""
    unit = (ROOT / "deploy/backup/muster-backup.service").read_text("utf-8")
    folder = re.search(r"^Environment=BACKUPS=(.+)$", unit, re.MULTILINE)[1]
    assert f"ReadWritePaths=-{folder}\n" in unit
    page = (ROOT / "docs/backup.md").read_text("utf-8")
    assert f"install -d -o muster -g muster -m 700 {folder} " in page
    assert "systemctl enable --now muster-backup.timer" in page
