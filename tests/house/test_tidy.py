"""Lint of the house: rooms, forbidden imports, sizes, leftovers. Reads the checkout; needs nothing compiled."""

from __future__ import annotations

import ast
import re
import tomllib
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.rigs.places import TESTS

if TYPE_CHECKING:
    from pathlib import Path

ROOT = TESTS.parent
PACKAGE = ROOT / "wheelsched"
CHECKOUT = PACKAGE.is_dir() and (ROOT / "pyproject.toml").is_file()
pytestmark = pytest.mark.skipif(not CHECKOUT, reason="no checkout here: only the tests were copied")

# Which rooms the modules of a room may import, besides those of their own: the picture in README.md, section Architecture.
ROOMS = {
    "model": "",
    "wheel": "model",
    "tables": "model",
    "schedules": "model",
    "protocol": "model schedules",
    "process": "model",
    "state": "model tables",
    "journal": "model state process",
    "tasks": "model protocol",
    "engine": "model wheel tables schedules protocol state",
    "reads": "model wheel tables schedules protocol state engine",
    "verbs": "model wheel tables schedules protocol state engine reads",
    "executor": "model protocol process tasks",
    "pool": "model protocol process",
    "client": "model schedules protocol",
    "server": "model wheel tables schedules protocol state engine reads verbs journal process pool",
    "simulator": "model wheel tables schedules protocol state engine reads verbs journal server client tasks",
    "web": "client model schedules",
    "cli": "client model schedules protocol",
}
FACE = {"__init__": "model schedules tasks client", "__main__": "cli", "testing": "simulator", "ext": "model"}  # modules in no room
# Verbs that are not calls of a client: they start processes, or read a data directory. The root of the command line loads each verb when it is used.
WITHOUT_CLIENT = ["cli.web", "cli.serve", "cli.worker", "cli.verify", "cli.bench.*"]
# Typed imports that still close a circle within a room, to be cut.
CIRCLES = {
    ("client.async_client_runs", "client.async_client"), ("client.client_runs", "client.client"), ("client.verbs_dead", "client.async_client"),
    ("client.verbs_dead", "client.client"), ("client.verbs_jobs", "client.async_client"), ("client.verbs_jobs", "client.client"),
    ("state.snapshot", "state.state"),
}
PURE = ["model.*", "wheel.*", "tables.*", "schedules.*", "protocol.*", "state.*", "engine.*", "reads.*", "verbs.*", "simulator.[!p]*", "journal.memory",
        "server.config", "server.lags"]
IMPURE = {"time", "random", "os", "socket", "asyncio", "threading", "subprocess", "logging", "lmdb", "psycopg",
          "select", "selectors", "signal", "secrets", "uuid", "resources"}
EXCEPTIONS = {("schedules.zonedata", "importlib.resources")}  # it reads the zone files of the tzdata package, and nothing else
OWNERS = {"lmdb": "journal.*"}
BANNED = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "multiprocessing"}
LIGHT = ["__init__", "client.*", "tasks.*", "executor.*"]
HEAVY = ["engine.*", "state.*", "journal.*", "verbs.*", "reads.*", "server.*", "simulator.*", "tables.*", "wheel.*", "*._[a-z]*"]
NO_CALLS = re.compile(r"(?:open|print|input|(?:.*\.)?date(?:time)?\.(?:now|utcnow|today))$")  # in a pure module
CYTHON_IMPORT = re.compile(
    r"^([ \t]*)(?:from[ \t]+([\w.]+)[ \t]+c?import\b[ \t]*(\(?[\w, \t]*)|c?import[ \t]+([\w., \t]+))", re.MULTILINE
)
MARKS = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b")
PLACES = re.compile(
    r"(?<![\w.])/(?:(?:work|farm|root)/|(?:home|Users)/\w\w)|/tmp" r"/(?:v|notes)\b|index-" r"url|trusted-" r"host"
    r"|\b(?:sub-?age" r"nt|clau" r"de|anthro" r"pic|other hel" r"pers)\b", re.IGNORECASE,
)
QUOTED = re.compile(r'"""(?s:.*?)"""|\'\'\'(?s:.*?)\'\'\'|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|#[^\n]*')
LINES_MAX, FUNCTION_LINES_MAX = 600, 70


class Import(NamedTuple):
    """One imported module: `wheelsched.x` is given as `.x`."""

    name: str
    line: int
    late: bool  # inside a function
    typing: bool  # under TYPE_CHECKING: it does not exist at run time


@cache
def nodes(path: Path) -> list[ast.AST]:
    """All nodes of a Python file, the tree itself first."""
    return list(ast.walk(ast.parse(path.read_text())))


@cache
def files(*patterns: str) -> list[Path]:
    found = {p for pattern in patterns for p in ROOT.rglob(pattern) if p.is_file()}
    # What is in oracles/ was written by others and is kept as it came.
    skipped = re.compile(r"^(\.(?!ci$).*|build|dist|__pycache__|oracles|.*\.egg-info)$")
    return sorted(p for p in found if not any(skipped.match(part) for part in p.relative_to(ROOT).parts[:-1]))


def package(*suffixes: str) -> list[Path]:
    return [p for p in files(*(f"*{s}" for s in suffixes)) if p.is_relative_to(PACKAGE)]


def module_of(path: Path) -> str:
    parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


def room_of(module: str) -> str | None:
    """The room of a module; None: it is in no room."""
    room = module.partition(".")[0]
    return room if room in ROOMS else None


def pure(module: str) -> bool:
    return matches(module, PURE)


def matches(module: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(module, p) for p in patterns)


def inner(name: str) -> str:
    """wheelsched.x as .x; any other name as it is."""
    return re.sub(r"^wheelsched\b\.?", ".", name)


def bare(path: Path) -> str:
    """The text with strings and comments blanked, lines kept (Cython is not Python, so no ast for it)."""
    return QUOTED.sub(lambda m: "\n" * m[0].count("\n"), path.read_text())


def python_imports(path: Path) -> list[Import]:
    found: list[Import] = []
    here = path.relative_to(PACKAGE).parent.parts

    def visit(node: ast.AST, late: bool, typing: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(inner(a.name), node.lineno, late, typing) for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = "." + ".".join([*here[: len(here) - node.level + 1], *filter(None, [node.module])])
            base = inner(base)
            for alias in node.names:  # `from . import x` names a module if there is one
                sub = f"{base.rstrip('.')}.{alias.name}"
                whole = base.startswith(".") and any(
                    (PACKAGE / sub[1:].replace(".", "/")).with_suffix(s).exists() for s in (".py", ".pyx", "")
                )
                full = sub if whole or not base.startswith(".") else base
                found.append(Import(".__init__" if full == "." else full, node.lineno, late, typing))
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                visit(child, late, True)
            for child in node.orelse:
                visit(child, late, typing)
        else:
            inside = late or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            for child in ast.iter_child_nodes(node):
                if isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
                    visit(child, inside, typing)

    visit(nodes(path)[0], False, False)
    return found


def cython_imports(path: Path) -> list[Import]:
    found = []
    text = bare(path)
    for m in CYTHON_IMPORT.finditer(text):
        line = text[: m.start()].count("\n") + 1
        names = [m[2]] if m[2] else [n.split(" as ")[0].strip() for n in m[4].split(",")]
        if m[2] in {".", "wheelsched"}:
            names = [f".{n.strip(' (')}" for n in m[3].split(",")]
        found += [Import(inner(n), line, bool(m[1]), False) for n in names]
    return found


@cache
def imports_of(path: Path) -> list[Import]:
    return python_imports(path) if path.suffix in {".py", ".pyi"} else cython_imports(path)


def own(imported: Import) -> str | None:
    return imported.name[1:] if imported.name.startswith(".") else None


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def no(offenders: list[str], rule: str) -> None:
    assert not offenders, rule + "".join(f"\n  {o}" for o in sorted(offenders))


def test_every_module_has_a_room() -> None:
    unknown = {m for p in package(".py", ".pyx", ".pxd") if room_of(m := module_of(p)) is None and m not in FACE}
    no(sorted(unknown), "put the module into a room; a new room stands in tests/house/test_tidy.py and in the architecture section of README.md:")


def test_imports_go_down_the_rooms() -> None:
    """Imports for types count, too."""
    bad, edges, met = [], {}, set()
    for path in package(".py", ".pyx", ".pxd"):
        module = module_of(path)
        room = room_of(module)
        allowed = set((ROOMS[room] if room else FACE[module]).split()) | {room}
        for imported in imports_of(path):
            target = own(imported)
            if target is None or target in {module, "__init__"}:
                continue
            if room_of(target) not in allowed and not matches(module, WITHOUT_CLIENT):
                bad.append(f"{where(path, imported.line)}: {module} imports {target}")
            if imported.typing and (module, target) in CIRCLES:
                met.add((module, target))
            else:
                edges.setdefault(module, set()).add(target)
    no(bad, "a room imports only the rooms that tests/house/test_tidy.py names for it:")
    no([f"{module} -> {target}" for module, target in CIRCLES - met], "CIRCLES lists what is cut already:")
    done: set[str] = set()

    def walk(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, "an import cycle: " + " -> ".join((*trail[trail.index(module):], module))
        if module not in done:
            for target in sorted(edges.get(module, ())):
                walk(target, (*trail, module))
            done.add(module)

    for module in sorted(edges):
        walk(module, ())


def test_each_room_says_what_it_is() -> None:
    bad = []
    for path in package("__init__.py"):
        tree = ast.parse(path.read_text())
        text = ast.get_docstring(tree) or ""
        names = {p.stem for s in ("*.py", "*.pyx", "*.pxd") for p in path.parent.glob(s)} - {"__init__"}
        room = room_of(module_of(path))
        if not text:
            bad.append(f"{path.relative_to(ROOT)}: no docstring")
        if room and room != "cli":
            bad += [f"{path.relative_to(ROOT)}: code" for _ in tree.body[1:2]]
            listed = re.findall(r"`(\w+\*?)`", text)
            bad += [f"{path.relative_to(ROOT)}: does not name {name}" for name in names if not matches(name, listed)]
    no(bad, "the docstring of a room says what it is, and names its files in reading order:")


def test_forbidden_imports() -> None:
    bad = []
    for path in package(".py", ".pyx", ".pxd"):
        module = module_of(path)
        for imported in imports_of(path):
            parts = imported.name.split(".")
            wrong = {part for part in BANNED if part in parts}
            if pure(module) and not imported.typing and not any(
                module == m and (imported.name == n or imported.name.startswith(n + ".")) for m, n in EXCEPTIONS
            ):
                wrong |= IMPURE & set(parts if own(imported) is None else ())
            wrong |= {t for t, owner in OWNERS.items() if parts[0] == t and not fnmatchcase(module, owner)}
            bad += [f"{where(path, imported.line)}: {module} imports {imported.name} ({w})" for w in wrong]
        if pure(module) and path.suffix == ".py":
            bad += [
                f"{where(path, n.lineno)}: {module} calls {ast.unparse(n.func)}()"
                for n in nodes(path)
                if isinstance(n, ast.Call) and NO_CALLS.match(ast.unparse(n.func))
            ]
    for path in files("tests/**/*.py", "benchmarks/*.py"):
        bad += [f"{where(path, n.lineno)}: pickle" for n in nodes(path)
                if isinstance(n, ast.Import | ast.ImportFrom) and "pickle" in ast.unparse(n)]
    no(bad, "imports that a module of this kind must not have:")


def test_the_users_side_is_light() -> None:
    graph = {module_of(p): imports_of(p) for p in package(".py")}
    bad = []
    for start in sorted(module for module in graph if matches(module, LIGHT)):
        seen, waiting = {start}, [(start, start, True)]
        while waiting:
            module, trail, direct = waiting.pop()
            for imported in graph.get(module, []):
                target = own(imported)
                if target is None or imported.typing or (imported.late and not direct) or target in seen:
                    continue  # what a lower module loads at first use (Cron.next: _cron) is not part of the import
                seen.add(target)
                if matches(target, HEAVY):
                    bad.append(f"{trail} -> {target}")
                waiting.append((target, f"{trail} -> {target}", False))
    no(bad, "the user's side must not load the engine, the store or the extensions:")


def functions(path: Path) -> list[tuple[str, int, int]]:
    """Every function of a file: name, first line, number of lines."""
    if path.suffix == ".py":
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        return [(n.name, n.lineno, (n.end_lineno or 0) - n.lineno + 1) for n in nodes(path) if isinstance(n, kinds)]
    found = []
    lines = bare(path).split("\n")
    for start, line in enumerate(lines):
        m = re.match(r"( *)(?:cdef|cpdef|def)\b(?!\s+(?:class|struct|enum|union|extern|packed)\b)[^=(]*?(\w+)\(", line)
        if not m:
            continue
        end = start
        for i in range(start + 1, len(lines)):
            text = lines[i].strip()
            if text and len(lines[i]) - len(lines[i].lstrip()) <= len(m[1]) and not text.startswith(")"):
                break
            end = i if text else end
        found.append((m[2], start + 1, end - start + 1))
    return found


def test_sizes() -> None:
    bad = []
    for path in [*files("*.py", "*.pyx", "*.pxd", "*.pyi"), *files(".ci/*")]:
        count = len(path.read_text().splitlines())
        bad += [f"{path.relative_to(ROOT)}: {count} lines (at most {LINES_MAX})"] if count > LINES_MAX else []
        if path.suffix in {".py", ".pyx", ".pxd"}:
            bad += [f"{where(path, line)}: {name} has {n} lines (at most {FUNCTION_LINES_MAX})"
                    for name, line, n in functions(path) if n > FUNCTION_LINES_MAX]
    no(bad, "split what outgrew its room:")


def test_tests_stand_in_rooms() -> None:
    """A test stands in the folder of the room that it asks; `rigs` has what several of them stand things up with."""
    rooms = {p.name for p in PACKAGE.iterdir() if p.is_dir()} | {"house", "manual", "sim", "crash"}
    names = [(path.relative_to(ROOT / "tests"), path) for path in files("tests/**/test_*.py")]
    bad = [f"{path.relative_to(ROOT)}: no room of the package" for name, path in names if len(name.parts) != 2 or name.parts[0] not in rooms]
    bad += [f"{p.relative_to(ROOT)}: put it into a room or into rigs/" for p in (ROOT / "tests").glob("*.py") if p.stem not in {"__init__", "conftest"}]
    bad += [f"{where(path, n.lineno)}: a test imports no other test" for path in files("tests/**/*.py") for n in nodes(path)
            if isinstance(n, ast.ImportFrom) and re.search(r"\.test_", f"{n.module}{''.join(f'.{a.name}' for a in n.names)}")]
    no(bad, "see tests/README.md:")


def test_names_and_leftovers() -> None:
    code = files("*.py", "*.pyx", "*.pxd", "*.pyi")
    vague = re.compile(r"^_?(?:utils?|commons?|helpers?|misc|stuff)$")
    bad = [f"{p.relative_to(ROOT)}: a name that says nothing" for p in code
           if any(vague.match(part) for part in p.relative_to(ROOT).with_suffix("").parts)]
    for path in [*code, *files("*.md", "*.toml", "*.in", "*.txt", "*.jsonl"), *files(".ci/*")]:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            bad += [f"{where(path, number)}: {m[0]}" for rule in (MARKS, PLACES) if (m := rule.search(line))]
    no(bad, "leftovers, vague names, or places that only one machine has:")


def test_no_swallowed_errors_no_prints_no_salted_hash() -> None:
    bad = []
    for path in files("*.py"):
        module = module_of(path) if path.is_relative_to(PACKAGE) else ""
        inside = bool(module) and room_of(module) != "cli" and module != "__main__"
        for node in nodes(path):
            if isinstance(node, ast.ExceptHandler):
                line = where(path, node.lineno)
                broad = node.type is None or re.search(r"\b(Base)?Exception\b", ast.unparse(node.type))
                idle = all(ast.unparse(s) in {"pass", "continue", "..."} for s in node.body)
                bad += [f"{line}: a bare except"] if node.type is None else []
                bad += [f"{line}: a swallowed exception"] if broad and idle else []
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                called, line = node.func.id, where(path, node.lineno)
                bad += [f"{line}: print() outside the cli"] if called == "print" and inside else []
                bad += [f"{line}: hash() is salted; use blake2b"] if called == "hash" and module and pure(module) else []
    for path in package(".pyx", ".pxd"):
        for number, line in enumerate(bare(path).split("\n"), 1):
            if re.match(r"\s*except(\s+(Base)?Exception\b.*)?:\s*(pass)?\s*$", line):
                bad.append(f"{where(path, number)}: a bare except")
            if m := re.search(r"(?<![\w.])(hash|print)\(", line):
                bad.append(f"{where(path, number)}: {m[1]}()")
    no(bad, "errors are handled or raised; only the cli prints:")


def test_packaging_lists_everything() -> None:
    rules = (ROOT / "MANIFEST.in").read_text()
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    setup = (ROOT / "setup.py").read_text()
    listed = (re.search(r"^recursive-include wheelsched (.+)$", rules, re.MULTILINE) or ["", ""])[1].split()
    built = (".c", ".so", ".pyc")
    bad = [f"{p.relative_to(ROOT)}: no rule of MANIFEST.in takes it" for p in files("*")
           if p.is_relative_to(PACKAGE) and p.suffix not in built and not matches(p.name, listed)]
    wanted = ["graft tests", "graft benchmarks", "LICENSE", "README.md", "CHANGELOG.md"]
    bad += [f"MANIFEST.in: no {rule}" for rule in wanted if rule not in rules]
    packages = {".".join(p.parent.relative_to(ROOT).parts) for p in package("__init__.py")}
    shipped = set(pyproject["tool"]["setuptools"]["packages"])
    bad += [f"pyproject.toml: package {name} is not listed" for name in packages - shipped]
    for path in package(".pyx"):
        bad += [] if path.with_suffix(".pyi").exists() else [f"{path.relative_to(ROOT)}: no .pyi beside it"]
        bad += [] if f'"{module_of(path)}"' in setup else [f"{path.relative_to(ROOT)}: setup.py does not build it"]
    no(bad, "what is not listed is not shipped:")


def test_changelog_names_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    heads = re.findall(r"^## \[?(Unreleased|\d[\w.]*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert {"Unreleased", version} & set(heads), f"CHANGELOG.md has no section Unreleased or {version}: {heads}"
