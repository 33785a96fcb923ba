"""State as records of the store: keys, values, sizes, and the digest over them."""
