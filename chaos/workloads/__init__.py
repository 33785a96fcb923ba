"""What uses a cluster while it is broken: processes that write down what they saw.

Each workload is one or several processes (`catalog`); each process runs one worker of a kind
(`kinds`), which writes its operations to a history file and its own figures to a track.
"""
