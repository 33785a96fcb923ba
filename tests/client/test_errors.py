"""Exceptions carry Kafka's names and numbers."""

import re

import pytest

from muster import errors
from muster.errors import ErrorCode, MusterError, error_class, error_from_status
from muster.v1 import errors_pb2


def test_the_numbers_are_those_of_the_wire():
    """muster.v1.ErrorCode and ErrorCode have the same names and numbers."""
    assert {c.name: c.value for c in ErrorCode} == dict(errors_pb2.ErrorCode.items())


@pytest.mark.parametrize("code", [c for c in ErrorCode if c is not ErrorCode.NONE])
def test_every_number_has_a_class_of_its_name(code):
    """With a hint, a message, and `retriable`."""
    cls = error_class(code)
    wanted = code.name.title().replace("_", "")
    assert cls.__name__ in (wanted, wanted.removesuffix("Exception"))
    error = cls()
    assert error.code == code
    assert error.hint
    assert isinstance(error.retriable, bool)
    assert re.search(rf"\[{int(code)}\]", str(error))


def test_a_status_becomes_its_exception():
    """Message and flags of the coordinator are kept."""
    status = errors_pb2.Status(code=27, message="round 7 is open", retriable=True)
    error = error_from_status(status)
    assert type(error) is errors.RebalanceInProgress
    assert error.retriable
    assert "round 7 is open" in str(error)


def test_a_number_from_the_future_is_kept():
    """Unknown here: UnknownServerError with the number as it came."""
    status = errors_pb2.Status(message="?")
    status.code = 4711
    error = error_from_status(status)
    assert type(error) is errors.UnknownServerError
    assert error.code == 4711
    assert isinstance(error, MusterError)
