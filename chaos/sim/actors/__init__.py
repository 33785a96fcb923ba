"""The actors of a run: members, operators, clients that ask for much, schedules."""
