"""Statuses as the wire has them."""

from muster.v1 import errors_pb2


def status(code: int, message: str = "", *, retriable: bool = False) -> errors_pb2.Status:
    return errors_pb2.Status(
        code=errors_pb2.ErrorCode.ValueType(code), message=message, retriable=retriable
    )
