"""Where the tasks of a package are: told to who named the package alone. Reads sources; nothing is imported for it."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_FILES_MAX: Final = 2_000
_TOLD_MAX: Final = 8


def no_tasks(module: str) -> str:
    """What to say of a module without a marked function: which modules inside of it have some."""
    text = f"the module {module} has no function marked @task"
    found = {name: n for name, n in sorted(_counts(module)) if n}
    if not found:
        return text
    names = list(found)[:_TOLD_MAX]
    more = f" and {len(found) - len(names)} more" if len(found) > len(names) else ""
    told = ", ".join(f"{name} has {found[name]}" for name in names)
    return f"{text}; {told}{more}: name {'it' if len(found) == 1 else 'them'}, {' '.join(f'--tasks {name}' for name in names)}"


def _counts(module: str) -> Iterator[tuple[str, int]]:
    """(name, how many functions its source marks) of the modules in a package."""
    spec = find_spec(module)
    left = _FILES_MAX
    for place in spec.submodule_search_locations or () if spec is not None else ():
        root = Path(place)
        for file in sorted(root.rglob("*.py")):
            parts = file.relative_to(root).with_suffix("").parts
            if parts == ("__init__",) or not all(part.isidentifier() for part in parts):
                continue
            left -= 1
            if left < 0:
                return
            yield ".".join((module, *(parts[:-1] if parts[-1] == "__init__" else parts))), _marked(file)


def _marked(file: Path) -> int:
    """How many functions of a source have a decorator `task`."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return 0  # nothing that could be imported
    made = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return sum(any(_is_task(decorator) for decorator in node.decorator_list) for node in made)


def _is_task(decorator: ast.expr) -> bool:
    """`@task`, `@task(...)`, `@wheelsched.task`, `@wheelsched.task(...)`."""
    named = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (named.attr if isinstance(named, ast.Attribute) else getattr(named, "id", "")) == "task"
