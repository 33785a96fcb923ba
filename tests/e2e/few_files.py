"""`python few_files.py COUNT -m muster.cli serve ...`: a server that may open so many files."""

import resource
import sys

from muster.cli import main

count = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))
main(sys.argv[4:])
