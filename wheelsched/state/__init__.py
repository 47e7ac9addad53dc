"""All that is remembered. `State.apply(kind, fields)` is the only way it changes, live and on replay alike.

In reading order: `records` (the kinds of records and their columns), `state` (with `attempts`, `workers` and `nouns`, which
are parts of it), `readable` (runs as readers are shown them), `snapshot`, `history` (blocks of finished runs), `pages` (of a
listing of runs) and `changelog` (who changed a job), `past` (the attempts of a run), `last_results`, `reused_rows` (which run
a row meant at an old record), `elapsed` and `touched` (by which things are forgotten), `bygone` (what history has dropped),
`creation`, `doubles`. `live` is the exception: it holds soft state, is in no digest, and begins anew with each start.

The rules: `digest(replay(journal)) == digest(live)`; no decision is made here, so that what a record meant once it means
for ever.
"""
