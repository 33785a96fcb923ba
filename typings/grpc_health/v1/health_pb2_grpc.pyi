from collections.abc import Awaitable, Callable

import grpc
import grpc.aio
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

class HealthStub:
    Check: Callable[..., HealthCheckResponse]
    def __init__(self, channel: grpc.Channel | grpc.aio.Channel) -> None: ...

class HealthServicer: ...

def add_HealthServicer_to_server(servicer: HealthServicer, server: grpc.aio.Server) -> None: ...
