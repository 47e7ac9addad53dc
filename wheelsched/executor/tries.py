"""Import task modules once, in a process of its own, and say what came of it: for `serve --check`.

    python -m wheelsched.executor.tries MODULE...

One line of JSON on stdout: {tasks: [names], faults: [texts]}. What the modules print goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys

from ..tasks.hooks import load_hooks
from ..tasks.tasks import load_exts, load_tasks
from ..tasks.verdicts import error_result, trace_of
from .packages import no_tasks


def main(modules: list[str]) -> int:
    """Always 0: what is wrong is told."""
    out = os.dup(1)
    os.dup2(2, 1)
    tasks: list[str] = []
    faults: list[str] = []
    for module in modules:
        try:
            found = load_tasks([module])
            if not found and not any(load_hooks([module])):
                faults.append(no_tasks(module))
            tasks += found
        except BaseException as e:  # noqa: BLE001 - the import of a user's module may raise anything
            faults.append(f"the task module {module} can't be imported: {type(e).__name__}: {error_result(e, trace_of(e))['message']}")
    if not faults:
        try:
            load_tasks(modules)
            load_exts(modules)
        except Exception as e:  # noqa: BLE001 - likewise, of all together
            faults.append(f"tasks: {e}")
    sys.stdout.flush()
    os.write(out, json.dumps({"tasks": sorted(set(tasks)), "faults": faults}).encode())
    os._exit(0)  # whatever threads they have left


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
