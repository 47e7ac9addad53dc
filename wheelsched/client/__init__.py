"""Both clients: `client` for threads, `async_client` for asyncio, each with a part of its methods in `client_runs` and
`async_client_runs`. What they ask and what they read is the same code, without I/O.

`verbs` and `verbs_*` are the questions, `values`, `columns` and `views_*` the answers, `put_many`, `bulk_runs` and `apply` the flows
of many rows, `jobs_text` jobs as a file, `places` where sockets are, `bounds` times as people write them.
`words`, `policy_words`, `times` and `troubles` are answers as people read them: figures, instants, whether all is well. `requests` holds
the open requests over reconnects; `transport` and `async_transport` add the socket and the waiting.
"""
