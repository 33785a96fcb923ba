"""What a soak's worker says of a membership that ended."""

from muster.errors import RequestTimedOut
from musterd.chaos.soak.worker import told


def test_of_a_group_of_errors_each_is_told():
    """The group's own words name none of them."""
    inner = ExceptionGroup("two", [RequestTimedOut("slow"), ValueError("bad")])
    said = told(BaseExceptionGroup("unhandled errors in a TaskGroup", [inner]))
    assert said.startswith("RequestTimedOut: ")
    assert "slow" in said
    assert said.endswith("; ValueError: bad")
