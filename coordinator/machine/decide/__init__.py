"""What a command does to a group or topic, by kind of command: events and an answer."""
