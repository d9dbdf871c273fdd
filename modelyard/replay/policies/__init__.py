"""Who scales in a replay: the real decision code, and what it is compared with.

Each policy is asked every ``interval`` seconds for replicas by variant. ``parse`` makes them from the command line.
"""
