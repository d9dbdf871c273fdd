"""The large fleets of ``benchmarks/tick.py``: the objects on the API server, and what their engines say."""
