"""The words: what a job, a run and an attempt are, which states they have, and how instants, durations and names are
written.

In reading order: `nouns` (states, the table of transitions, limits, calls), `plain` (states as plain numbers), `typed` (what users
give, for type checkers), `policies` (retry, catch-up and overlap as users write them), `jobs` (a job or a call with its policies), `errors`
(one base class, one class for each code of the wire), `payloads` (which values can be stored), `ids`, `globs`, `tape` (what is kept of an
output), `columns` (arrays in few bytes; this one needs numpy).

It imports no other room, no clock, no socket, no thread and no disk. Users' programs load it, so it stays light.
"""
