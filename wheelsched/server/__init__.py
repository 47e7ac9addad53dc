"""The server process: one thread, one loop. Gather, decide, commit, act, sleep.

In reading order: `config`, `check` (what a start would stumble over), `boot` (lock, replay, end the former generation, take
over, serve), `server` (the loop), `clock`, `listener`, `connections` and `peers` (sockets, and who may come), `grants`,
`intake` (which requests a turn takes), `keeper` and `storage` (snapshots, retention, full disks), `headroom` (memory),
`event_readers`, `forecasts`, `answered` (a bug in an answer ends one request), `reload`, `stacks`, `lags`, `rationed` (lines
of the log).
"""
