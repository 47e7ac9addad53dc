"""What user code imports: `@task`, `current_run`, hooks, and what a task may raise about its own run.

`tasks`, `hooks`, `verdicts`, `returned` (what user code has returned, as it is kept). It is loaded by `import wheelsched`
in users' programs, so it stays light.
"""
