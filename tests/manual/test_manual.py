"""README and the manual: every page is listed, every link leads somewhere, and every example runs."""

from __future__ import annotations

import re
import signal
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import wheelsched
from tests.manual import reference
from tests.manual.blocks import MANUAL, README, blocks, commands, others, parse, sources, spans
from tests.rigs.places import TESTS
from tests.rigs.server import Serving
from wheelsched import Client
from wheelsched.cli.manual import pages
from wheelsched.cli.root import VERBS, cli
from wheelsched.client.client import Run
from wheelsched.model.policies import MEANINGS
from wheelsched.protocol.definition import POLICIES
from wheelsched.simulator.simulator import Simulator
from wheelsched.simulator.transport import redirect

TOPICS = [page.topic for page in pages()]
SOURCES = pytest.mark.parametrize("path", sources(), ids=lambda path: path.stem)
START = "2026-03-02T09:30:00Z"  # a Monday, and no clock changes that week
needs_readme = pytest.mark.skipif(not README.is_file(), reason="no checkout here: only the tests were copied")


def invoke(*args):
    return CliRunner().invoke(cli, ["manual", *args])


def test_the_list_of_pages():
    done = invoke()
    assert done.exit_code == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["TOPIC", *TOPICS]
    assert set(TOPICS) == {path.stem for path in MANUAL.iterdir()}


@pytest.mark.parametrize("topic", TOPICS)
def test_a_page_begins_with_its_title_and_one_line(topic):
    title, about, _ = (MANUAL / f"{topic}.md").read_text(encoding="utf-8").split("\n\n", 2)
    assert re.fullmatch(r"# \S.*", title)
    assert re.fullmatch(r"[^#`\n].{10,110}\.", about)
    shown = invoke(topic.upper()).stdout
    assert shown.startswith(f"{title}\n\n{about}\n\n")
    assert "<!--" not in shown, "marks are for the tests"


def test_a_page_that_is_not_there():
    for topic, meant in (("schedule", "perhaps schedules"), ("retries", "perhaps runs (section "), ("xyzzy", "the pages are operating, ")):
        done = invoke(topic)
        assert (done.exit_code, done.stdout) == (3, "")
        assert meant in done.stderr


@needs_readme
def test_readme_lists_every_page():
    assert re.findall(r"^\| \[([\w-]+)\]\(wheelsched/manual/\1\.md\) \|", README.read_text(encoding="utf-8"), re.MULTILINE) == TOPICS


def anchors(text):
    """The anchors that a reader of Markdown makes of the headings."""
    return {re.sub(r"[^\w\- ]", "", line).strip().lower().replace(" ", "-") for line in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


@SOURCES
def test_every_link_leads_somewhere(path):
    text = re.sub(r"`[^`\n]+`", "", path.read_text(encoding="utf-8"))  # what stands in a code span is no link
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        target, _, anchor = link.partition("#")
        found = path.parent / target if target else path
        assert found.is_file(), link
        assert not anchor or anchor in anchors(found.read_text(encoding="utf-8")), link
    for topic in re.findall(r"wheelsched manual ([a-z-]+)", path.read_text(encoding="utf-8")):
        assert topic in TOPICS


def everything():
    return "\n".join(page.text for page in pages())


def test_the_reference_is_current():
    """Every verb and every public name: `python -m tests.manual.reference` writes the page."""
    assert reference.PAGE.read_text(encoding="utf-8") == reference.page()


def test_every_policy_is_on_some_page_with_its_flag():
    text = everything()
    assert not [name for name in {*MEANINGS, *POLICIES} if not re.search(rf"`{name}[`=]", text)]


@SOURCES
def test_words_in_backticks_are_verbs_flags_and_methods(path):
    """`run get`, `serve --grant`, `ws.queue(...)`: a verb, flag or method that there is not is a fault of the page."""
    wrong = []
    for span in spans(path.read_text(encoding="utf-8")):
        words = span.removeprefix("wheelsched ").split()
        command, taken = cli, 0
        while isinstance(command, click.Group) and taken < len(words) and (taken or words[0] in VERBS):
            found = command.get_command(click.Context(command), words[taken])
            if found is None:
                wrong += [span] if re.fullmatch(r"[a-z]+", words[taken]) else []
                break
            command, taken = found, taken + 1
        if taken:
            known = {flag for param in command.params for flag in [*param.opts, *param.secondary_opts]}
            wrong += [f"{span}: {flag}" for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", span.partition(" -- ")[0]) if flag not in known]
        for name in re.findall(r"\bws\.(\w+)", span):
            wrong += [] if hasattr(Client, name) else [span]
        for name in re.findall(r"^run\.(\w+)`?$", span):
            wrong += [] if name in dir(Run) or span in EVENTS else [span]
    assert not wrong


EVENTS = {f"run.{what}" for what in ("created", "queued", "leased", "failed", "succeeded", "dead", "cancelled", "skipped")}


@SOURCES
def test_every_mark_is_known(path, page_folder):
    write_files(path, page_folder)
    for block in blocks(path):
        assert block.mark in {"", "file", "not run", "run by", "test-command"}, f"{block.where}: {block.mark}"
        assert (block.said == "") == (block.mark in {"", "test-command"}), f"{block.where}: {block.mark}: what?"
        if block.mark == "run by":
            test = TESTS.parent / block.said
            assert test.is_file(), f"{block.where}: {block.said}"
            assert path.name in test.read_text(encoding="utf-8"), f"{block.said} does not read {path.name}"
        if block.kind == "python":
            compile(block.text, block.where, "exec")
        if block.kind == "sh":
            for words in commands(block):
                try:
                    parse(words)
                except click.ClickException as e:
                    pytest.fail(f"{block.where}: wheelsched {' '.join(words)}: {e.format_message()}")
            assert block.mark or not others(block), f"{block.where}: only calls of wheelsched are run; mark the block: {others(block)}"


def write_files(path, folder):
    """The files of a page; the names of its modules."""
    made = [block for block in blocks(path) if block.mark == "file"]
    for block in made:
        (folder / block.said).write_text(block.text)
    return [block.said.removesuffix(".py") for block in made if block.kind == "python"]


@pytest.fixture
def page_folder(short_tmp, monkeypatch):
    """The working folder of a page's blocks. Modules that they import from it are forgotten afterwards."""
    monkeypatch.chdir(short_tmp)
    monkeypatch.syspath_prepend(str(short_tmp))
    before = set(sys.modules)
    yield short_tmp
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(short_tmp)):
            del sys.modules[name]


def run_tests(names, known):
    """A block may be a test file for pytest: each test gets its own simulator, as the mark says."""
    for name, function in list(names.items()):
        if name.startswith("test_") and name not in known:
            options = next((mark.kwargs for mark in getattr(function, "pytestmark", ()) if mark.name == "wheelsched"), {})
            with Simulator(**options) as sim, pytest.MonkeyPatch.context() as patch:
                redirect(sim, patch)
                function(sim)


@SOURCES
def test_python_blocks_run(path, page_folder):
    """Those of a page in order, in one namespace: the public names, and `ws`, a client of a simulator that serves the page's tasks."""
    run = [block for block in blocks(path) if block.kind == "python" and not block.mark]
    modules = write_files(path, page_folder)
    if not run:
        pytest.skip("no such blocks")
    for module in modules:
        import_module(module)
    with Simulator(START, modules) as sim, pytest.MonkeyPatch.context() as patch:
        redirect(sim, patch)
        names = {name: getattr(wheelsched, name) for name in wheelsched.__all__} | {"ws": wheelsched.Client(), "sim": sim}
        for block in run:
            known = set(names)
            exec(compile("\n" * (block.line - 1) + block.text, block.path.name, "exec"), names)
            run_tests(names, known)


@pytest.fixture(scope="module")
def server():
    """One real server for the shell lines of all pages. It serves the tasks of all pages."""
    with tempfile.TemporaryDirectory(prefix="ws", dir="/tmp") as name:
        folder = Path(name)
        flags = ["--allow-commands", "--allow-http"]
        for path in sources():
            own = folder / f"page_{path.stem.replace('-', '_').lower()}"
            own.mkdir()
            (own / "__init__.py").write_text("")
            flags += [word for module in write_files(path, own) for word in ("--tasks", f"{own.name}.{module}")]
        serving = Serving(folder, *flags, workers=1)
        try:
            serving.client()
            yield serving
        finally:
            serving.end(signal.SIGKILL)
            for thing in serving.open:
                thing.close()


@SOURCES
def test_shell_blocks_run(path, request, page_folder, monkeypatch):
    run = [block for block in blocks(path) if block.kind == "sh" and not block.mark]
    if not run:
        pytest.skip("no such blocks")
    write_files(path, page_folder)
    serving = request.getfixturevalue("server")
    monkeypatch.setenv("WHEELSCHED_SOCKET", serving.socket)
    monkeypatch.setenv("HOME", str(page_folder))
    for block in run:
        for words in commands(block):
            done = CliRunner().invoke(cli, words, catch_exceptions=False)
            said = f"{done.output}\n{serving.log.read_text()}"
            assert done.exit_code == 0, f"{block.where}: wheelsched {' '.join(words)}: {done.exit_code}\n{said}"


def test_a_fault_of_a_page_is_found(tmp_path):
    """The marks and the parser must be able to say no."""
    page = tmp_path / "p.md"
    page.write_text("<!-- not run: x -->\n\n```sh\nwheelsched job put n t --evry 5s   # what\n```\n\n```sh\nls | wheelsched job list\n```\n")
    first, second = blocks(page)
    assert (first.mark, first.said, first.line, second.mark) == ("not run", "x", 4, "")
    with pytest.raises(click.NoSuchOption):
        parse(*commands(first))
    assert commands(second) == [["job", "list"]]
    assert others(second) == ["ls | wheelsched job list"]
    with pytest.raises(click.UsageError):
        parse(["job", "putt"])
