"""What a start cannot do without, as a process: import gRPC, and hash a node's number of records.

`python -m bench.record_hashes COUNT` is what `bench restart` takes its limits from: a load hashes
each record for the digest of its shard.
"""

import sys

import grpc  # noqa: F401  # much of what a node imports

from musterd.coordinator.machine.records.digest import record_digest

KEY_BYTES, VALUE_BYTES = 40, 42
"""As those of an offset that no member committed, about."""


def main() -> None:
    """Hash so many records as the command line says."""
    value = bytes(VALUE_BYTES)
    for number in range(int(sys.argv[1])):
        record_digest(number.to_bytes(KEY_BYTES, "big"), value)


if __name__ == "__main__":
    main()
