"""When a job runs: from text to the next instant.

In reading order: `schedule` (Cron, Every, At, Manual, as users write them), `expressions` (cron text to bit masks),
`zonedata` and `zones` (zone data to changes of the offset), `_cron` (the search, compiled; `_cron_wall` has its structures,
`_cron_search`, `_cron_count`, `_cron_days` and `_cron_lost` are parts of it), `table` (all schedules of a server),
`calendars`, `jitter`, `grids` (how many instants several schedules share), `lint` (what people get wrong), `words` (a
schedule as one would type it).

Time is always an argument. Zone data comes from the package tzdata alone, so that two machines agree.
"""
