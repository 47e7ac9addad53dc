"""What parent and child share: processes of the operating system, and the started file.

The started file is memory that an executor shares with its parent. Before user code is entered, the token of the attempt is
written there; when it has returned, that is written too, with the result. So whoever finds a dead executor knows for each
run: not started (it is handed back), started (it is lost, and counts as an attempt), or ended (its result is reported). It
outlives both processes.

In reading order: `processes` (identity, groups, capture of output), `started` with `kept`, `kept_log` and `last_words` (the
started file), `contract` (what the operator allows), `launch`, `starts` (one policy for processes that can't be had),
`leftovers`, `reaper`, `asked` (the stack of a run), `usage`, `wear`, `stderr`.
"""
