"""All that is decided. `Engine.step(now, inputs) -> Effects` takes one turn; it reads the state, makes records, and never
touches the world.

A turn decides in this order: what workers report, due times up to now, expiries, commands, leases. Each record is applied
at once, so that later decisions of the turn see it. What goes out waits in `Effects` until the journal says that the
records are on disk: durable before visible.

In reading order: `engine`, `turn` (what goes in and comes out), `definitions` (compiled, as arrays), `due` with `decided`,
`catchup` and `spans` (occurrences), `overlap` (who is in whose way), `queues`, `leases` and `holders`, `peers`,
`heartbeats`, `endings`, `late`, `retries`, `chains`, `expiry`, `alarms`, `retime` (what moves next times), `sweeps`
(commands on many runs, a piece a turn), `costs`, `quotas` and `outbox` (what a turn takes, keeps and has sent), `memory`
and `forgetting`, `arguments`, `roles`, `announcements`, `served` (which tasks workers serve).

Time is an argument. No clock, socket, thread or disk.
"""
