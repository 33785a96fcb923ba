"""A process of the test suite may fork: PySpark does, whatever test used gRPC before it."""

import asyncio
import subprocess
import sys

import grpc


def test_a_child_of_a_process_that_uses_grpc_is_left_alone_by_its_handlers(capfd):
    """They kill some children, and say so each time that they could not run."""

    def fork() -> None:
        subprocess.run([sys.executable, "-SEc", ""], preexec_fn=lambda: None, check=True)

    async def use() -> None:
        server = grpc.aio.server()
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            await channel.channel_ready()
            for _ in range(10):
                fork()
            said = capfd.readouterr().err  # before the server ends its connections, which is told
        await server.stop(None)
        assert said == ""

    asyncio.run(use())
