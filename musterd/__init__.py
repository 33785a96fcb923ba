"""The server and its tools. Its folders are those of the repository's root."""
