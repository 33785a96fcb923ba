"""The processes that use a cluster while it is broken, and write down what they saw."""
