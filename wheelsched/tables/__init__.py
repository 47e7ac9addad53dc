"""Jobs, runs and ready lines in columns, compiled: what is done to many rows is one loop in C.

In reading order: `_rows` (chunks of rows, snapshots by copy-on-write), `_jobs`, `_run` (the row of a run, field by field),
`_runturns` (the runs of one job, and whose turn it is), `_runindex` (runs by id and by token), `_runrows` (lists), `_runs` (what
happens to runs), `_ready` (which run goes next).

A row that is freed is used again, the lowest first, so that a replay allocates as the live state did. Only `state` changes
rows. Each table has a `check()` that walks all of it.
"""
