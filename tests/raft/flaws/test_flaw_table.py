"""The table of flaws is complete and names scripts that exist."""

import re
from pathlib import Path

HERE = Path(__file__).parent
SCRIPTS = "F1 F1b F1c F2 F3 F5a F5b F5c F5d F5f F6 F7 F8 F8b F10 F12 F14 F16 F17 F19 F20"
REASONS = "F4 F5e F9 F11 F13 F15 F18"
SCRIPTED = set(SCRIPTS.split())
REASONED = set(REASONS.split())


def _rows() -> dict[str, str]:
    rows = {}
    for line in (HERE / "README.md").read_text().splitlines():
        found = re.match(r"\| (F\d+[a-f]?) \|.*\| ([^|]+) \|$", line)
        if found:
            assert found[1] not in rows, f"{found[1]} stands twice"
            rows[found[1]] = found[2]
    return rows


def test_every_flaw_has_one_row() -> None:
    """The ids are those of the list, no more and no fewer."""
    assert set(_rows()) == SCRIPTED | REASONED


def test_every_flaw_has_a_script_or_a_reason() -> None:
    """A row names the file that holds its script, or says why the flaw cannot occur."""
    for flaw, where in _rows().items():
        if flaw in REASONED:
            assert where.startswith("cannot occur: "), flaw
            assert len(where) > 60, flaw
        else:
            script = (HERE / where.strip("`")).read_text()
            assert f"def test_{flaw.lower()}_" in script, flaw
            assert f'"""pso-{flaw}: ' in script, flaw
