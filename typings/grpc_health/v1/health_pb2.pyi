from typing import ClassVar

from google.protobuf.message import Message

class HealthCheckRequest(Message):
    def __init__(self, *, service: str = ...) -> None: ...

class HealthCheckResponse(Message):
    UNKNOWN: ClassVar[int]
    SERVING: ClassVar[int]
    NOT_SERVING: ClassVar[int]
    SERVICE_UNKNOWN: ClassVar[int]
    status: int
