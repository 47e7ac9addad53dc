"""All that is decided. `Engine.step(now, inputs) -> Effects` takes one turn; it reads the state, makes records, and never
touches the world.

A turn decides in this order: what workers report, due times up to now, expiries, commands, leases. Each record is applied
at once, so that later decisions of the turn see it. What goes out waits in `Effects` until the journal says that the
records are on disk: durable before visible.

`core` is what a decision may use: the state, the clocks of the turn, a way to record, timers, and what is soft. Decisions
are functions that take a Core, and call each other downwards; `engine` is the Core that takes turns. It is given the verbs
of clients, and knows none of them.

In reading order: `core`, `turn` (what goes in and comes out), `definitions` (compiled, as arrays), `due` with `decided`,
`catchup` and `spans` (occurrences), `unattended` (what a paused or held job owes), `start_times`, `overlap` (who is in
whose way), `queues` (limits), `leases` and `holders`, `connected` and `peers`, `heartbeats`, `endings`, `late`, `retries`,
`chains`, `groups`, `notices` (for the log), `pulse` (of the last hour), `waiters`,
`deadlines` and `expiry`, `alarms`, `retime` (what moves next times), `sweeps` (commands on
many runs, a piece a turn), `postponed` (commands that wait until enough is decided), `costs`, `quotas`, `uploads` and
`outbox` (what a turn takes, keeps and has sent), `memory`, `forgetting`, `keys` and `housekeeping`, `arguments`, `roles`,
`announcements`, `served` and `census` (which tasks workers serve), `engine`.

Time is an argument. No clock, socket, thread or disk.
"""
