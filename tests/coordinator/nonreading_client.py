"""The non-reading client of the chaos suite, which also says with which status its calls ended."""

import hpack

from musterd.chaos.faults import nonreading_client


class NonReadingClient(nonreading_client.NonReadingClient):
    """For the tests: one on this machine."""

    def __init__(self):
        super().__init__()
        self.statuses = {}
        """Stream -> gRPC's status."""
        self._decoder = hpack.Decoder()

    def heard(self, stream, block):
        told = dict(self._decoder.decode(block))
        if "grpc-status" in told:
            self.statuses[stream] = int(told["grpc-status"])
