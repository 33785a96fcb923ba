"""What uses a cluster while it is broken: processes that write down what they saw."""
