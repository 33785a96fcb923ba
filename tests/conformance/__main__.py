"""`python -m tests.conformance`: the tests that `make conformance` runs, one a line.

The runners of the golden files, and the tests that tests.toml names.
"""

import sys

from tests.conformance.ledger import Book

RUNNERS = (
    "tests/client/test_assignors_golden.py",
    "tests/client/test_membership_golden.py",
    "tests/coordinator/runtime/test_calls_golden.py",
    "tests/coordinator/runtime/test_sessions.py",
    "tests/machine/test_golden.py",
)

sys.stdout.writelines(f"{test}\n" for test in (*RUNNERS, *sorted(set(Book.read().tests.values()))))
