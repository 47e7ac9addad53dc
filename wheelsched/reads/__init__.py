"""What is shown: pages and answers made from the state, the history and the records. Nothing here changes anything.

`reads` (jobs, runs, counts), `waiting` (what holds a run back), `events` with `event_kinds` (records as state changes), and
the forecast: `forecast`, `forecast_lines`, `forecast_walk`, `forecast_answer` and `_forecast`, which is compiled.

Positions of pages are opaque to clients. Work is done in bounded pieces, so that no reader holds up the loop.
"""
