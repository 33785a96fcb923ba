"""The RPCs, by service and family: each decodes its request, asks a shard, encodes the answer."""
