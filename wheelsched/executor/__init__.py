"""A worker process from inside: it leases runs over the socket that its parent handed down, runs them, and reports.

In reading order: `main` (one run at a time), `link` (its end of the socket), `runner` (enter user code, keep what it
returns, prints and raises), `crew` (several at a time, in threads or on one event loop), `outputs`, `loops`, `surroundings`
(what all runs of a process share, put right between them), `forks`, `stacks` (where a run is in its code), `tries` (an
import, for a check), `packages` (where the tasks of a package are), and the built-in tasks: `builtin`, `causes` (what they
are told of it), `command` with `env_files`, `http`, `network`.
"""
