"""Benchmarks: `python -m benchmarks [name] [--smoke] [-o file.json]`.

Each module here with a NAME is one: NAME, DESCRIPTION, and run(smoke) -> rows of {"name", "value", "unit", "n"} and, for a
comparison, {"peer", "ratio"}: who did the same in the same run, and their value divided by ours. Seeds are fixed.
"""
