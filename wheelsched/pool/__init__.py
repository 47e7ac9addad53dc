"""Worker processes from outside: start, watch, end, replace. For the server's own pool and for `wheelsched worker`.

`pool` (the server's), `handle` (an executor as its parent sees it), `rolling` (new code, one process after another), `stacks`
(where a run is in its code), `supervisor` with `slots` and `folder` (`wheelsched worker`).

It starts executors by name and imports none of their code.
"""
