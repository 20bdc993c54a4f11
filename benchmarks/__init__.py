"""Measurements of Graft for its own documentation; not part of the wheel.

`python -m benchmarks KIND ...` from the root of the repository, with the extra `bench` installed.
"""
