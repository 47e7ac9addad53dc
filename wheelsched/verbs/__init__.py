"""What clients ask for: a file for each topic. A verb checks its arguments, calls the engine, and answers.

`jobs` has the table of all of them; then `put` and `apply` (jobs, one or many) with `differences`, `enqueue`, `groups`,
`runs` (trigger, wait), `cancels`, `dead`, `occurrences` (skip, move, backfill), `queues`, `why`, `operator` (hold,
calendars, who changed a job).

A request that is refused has changed nothing. One that is repeated with its key does nothing a second time.
"""
