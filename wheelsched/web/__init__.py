"""The dashboard: `wheelsched web`, a process of its own that is only a client of the server's socket. It needs the extra `web`.

`serving` binds the address and runs uvicorn; `app` is the ASGI application and its errors; `guard` looks at each request before any
page does; `parameters` clamps what comes in a URL; `reader` asks the server, once for all browsers; `pages` makes what each page
shows, with `figures` (texts, instants) and `charts` (SVG); `actions` is what changes something, with `--allow-actions` alone; `metrics`
is what Prometheus scrapes. The templates are beside, and so are style, script and icon: nothing comes from elsewhere.

Rules: a GET changes nothing; what others stored is escaped; no question to the server is without a limit and a timeout.
"""
