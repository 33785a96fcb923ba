"""Modern groups: the coordinator assigns (KIP-848), and each grant of a partition has a token."""
