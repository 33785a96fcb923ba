"""Who acts in a run: members, operators, clients that ask for much, schedules."""
