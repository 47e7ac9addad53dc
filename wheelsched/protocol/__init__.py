"""The wire, sans-IO: what both ends of a socket must agree on.

In reading order: `frames` (specified by the manual's page `protocol`, from which a worker in any language can be written), `verbs` (one
table of them), `definition` and `checks` (what a job is asked to be, and the check of each value), `limits` (what requests
can make a server keep), `returned` (results of workers, cut to size), `redact` (what is shown to nobody).

No value that comes from a peer is trusted: each is checked before it is used, and the error says what to do.
"""
