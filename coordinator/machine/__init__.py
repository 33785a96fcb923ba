"""The machine: consumer groups as a pure function of their log (arch-3).

`decide` reads a group and returns events and an answer; `evolve` alone changes it. No clock, no
randomness, no I/O, no exception for an outcome, no iteration over sets: the live server, recovery,
the simulator and replay run this code and agree to the digest. Imports a listed few modules of the
standard library, musterd/invariant.py, musterd/levels.py, and nothing else.
"""
