"""Where the CPU of a commit goes: by process, thread and layer."""
