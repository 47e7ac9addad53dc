"""The page `reference` of the manual, made of what the command line and the package say of themselves.

`python -m tests.manual.reference` writes it anew; a test is red when it is out of date.
"""

from __future__ import annotations

import inspect

import click

import wheelsched
from tests.manual.blocks import MANUAL
from wheelsched.cli.root import cli

PAGE = MANUAL / "reference.md"
HEAD = """# Reference

Every verb of the command line, its exit codes, and every name that `import wheelsched` gives.

`wheelsched VERB --help` has the flags of a verb. `help(wheelsched.Client.put)` has the arguments of a method.

## Exit codes

| code | meaning |
|---|---|
| 0 | done |
| 1 | failed |
| 2 | wrong usage |
| 3 | not found |
| 4 | conflict, or fenced |
| 5 | no server answers |
| 6 | permission denied |
| 7 | the run failed |
| 8 | timed out |
| 65 | `serve`, `admin verify`: the data directory is damaged |
| 70 | `serve`: the storage failed |
| 71 | `serve`: out of memory |
| 75 | `serve`: another server holds the directory |
| 78 | `serve`, `worker`: the configuration or a task module can't be used |

## Verbs

`--socket PATH`, `-o table|wide|json|jsonl`, `--time job|utc|local` and `--timeout D` stand before or behind any verb.

| verb | what it does |
|---|---|
"""


def verbs(command: click.Command, words: tuple[str, ...] = ()):
    """Each verb that does something: its words, and the command."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from verbs(command.get_command(context, name), (*words, name))
    else:
        yield words, command


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def about(name: str) -> str:
    """The first sentence that a public name says of itself."""
    text = (inspect.getdoc(getattr(wheelsched, name)) or "").split("\n\n")[0]
    return cell(text).split(". ")[0].rstrip(".:") + "."


def page() -> str:
    lines = [f"| `{' '.join(words)}` | {cell(command.get_short_help_str(400))} |" for words, command in verbs(cli)]
    names = [name for name in sorted(wheelsched.__all__, key=str.lower) if name != "__version__"]
    errors = [name for name in names if isinstance(getattr(wheelsched, name), type) and issubclass(getattr(wheelsched, name), Exception)]
    parts = [HEAD, "\n".join(lines), "\n\n## Names\n\n| name | what it is |\n|---|---|\n"]
    parts += ["\n".join(f"| `{name}` | {about(name)} |" for name in names if name not in errors), "\n| `__version__` | The version of the package. |\n"]
    parts += ["\n## Errors\n\nEach is a WheelschedError with a stable `code`.\n\n| error | meaning |\n|---|---|\n"]
    parts += ["\n".join(f"| `{name}` | {about(name)} |" for name in errors), "\n"]
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
