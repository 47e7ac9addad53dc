"""What is on disk: records in LMDB, appended, replayed, trimmed, with snapshots and blocks of history.

In reading order: `memory` (the seam of all journals, and the one in memory for simulator and tests), `lmdb_journal`,
`store` (the LMDB environment), `directory` (lock, marker, position, reserve), `files`, `recover` (the state at the end of a
journal), `pages` (a look at the file before LMDB maps it), `ending` (how a journal that can't go on ends its process).

A commit is one LMDB transaction, synced once: all records of a turn, or none. What it has not reported as durable has not
happened: no reply and no run leaves the server before. An error of a write or a sync ends the process; after a failed sync
nobody knows what is on disk. No other room imports lmdb.
"""
