from grpc_health.v1 import _async as aio

__all__ = ["aio"]
