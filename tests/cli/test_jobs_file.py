"""Jobs files: what they say, and every fault with its line."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rigs.places import TESTS
from wheelsched import At, Catchup, Cron, Every, Manual, Overlap, Retry
from wheelsched.cli.jobs_file import read_jobs_file
from wheelsched.cli.toml_lines import line_of, toml_lines

CASES = TESTS / "import_cases"


def read(text):
    return read_jobs_file(text)


def faults(text):
    return [(f.line, f.place, f.text) for f in read(text).faults]


def test_a_whole_file():
    found = read((CASES / "jobs.toml").read_text())
    assert found.faults == []
    jobs = {job.name: job for job in found.jobs}
    assert list(jobs) == ["billing/charge", "billing/offices", "default/ping", "default/gift", "default/cleanup"]
    assert found.lines == [7, 15, 21, 27, 31]
    charge = jobs["billing/charge"]
    assert (charge.call.task, charge.call.args, charge.call.kwargs) == ("billing.charge", ("eu", 3, {"deep": [1.5, True]}), {"full": True})
    assert charge.schedule == Cron("0 0 * * *", "Europe/Berlin")
    assert charge.policies["retry"] == Retry(attempts=5, backoff="30s")
    assert (charge.policies["queue"], charge.policies["timeout"], charge.policies["note"]) == ("reports", "5m", "asked for by accounting")
    offices = jobs["billing/offices"]
    assert offices.schedule == [Cron("0 8 * * 1-5", "Europe/Berlin"), Cron("0 9 * * 1-5", "America/New_York")]
    assert offices.policies["overlap"] == Overlap("allow", max=4)
    assert offices.policies["catchup"] == Catchup("all", window="2h", max=10)
    ping = jobs["default/ping"]
    assert (ping.call.task, ping.call.args, ping.schedule) == ("http", ("GET", "http://a.example/"), Every("30s"))
    assert (ping.policies["timeout"], ping.policies["retry"]) == ("5s", 1)
    assert jobs["default/gift"].schedule == At("2026-12-24T10:00:00Z")
    cleanup = jobs["default/cleanup"]
    assert cleanup.call.kwargs == {"cwd": "/", "env": {"A": "1"}, "user": None, "success_codes": [0, 3]}
    assert cleanup.schedule == Manual()
    assert cleanup.policies["paused"] is True


def test_every_fault_is_found_at_its_line():
    text = (CASES / "jobs_wrong.toml").read_text()
    marked = {int(n) for n in re.findall(r"# line (\d+)$", text, re.MULTILINE)}
    found = faults(text)
    assert {line for line, _, _ in found} == marked, found
    said = {place: what for _, place, what in found}
    assert "did you mean 'jitter'" in said["defaults.jitr"]
    assert "did you mean 'backoff'" in said["defaults.retry.backof"]
    assert "did you mean 'cron'" in said['jobs."billing/charge".crn']
    assert '[jobs."a.b"]' in said["jobs.a"]
    assert "no shell" in said['jobs."z z".command']
    assert "goes with cron, not with every" in said['jobs."z z".tz']
    assert "did you mean 'every'" in said["jobs.parts.schedules[1].evry"]
    assert "the same job" in said['jobs."default/twice"']
    assert "later than start" in said["jobs.ends"]
    assert "no time zone" in said["jobs.local.at"]


def test_one_fault_is_told_once():
    assert len(faults('[defaults]\nqueue = "no good"\n[jobs.a]\ntask = "t"\nmanual = true\n[jobs.b]\ntask = "t"\nmanual = true\n')) == 1


def test_a_default_that_cannot_go_with_a_job_is_left_out_for_it():
    found = read('[defaults]\njitter = "10%"\n[jobs.a]\ntask = "t"\nat = 2026-12-24T10:00:00Z\n[jobs.b]\ntask = "t"\ncron = "0 0 * * *"\n')
    assert found.faults == []
    assert "jitter" in found.jobs[1].policies


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("[jobs.a]\nx = \n", 2, "no TOML"),
        ("[jobs.a]\n[jobs.a]\n", 2, "no TOML"),
        ('jobs = "x"', 1, "a table is wanted, not text"),
        ("[jobs]\na = 3", 2, "a table is wanted, not a number"),
        ("[defaults]\ntz = 'No/Where'", 2, "No/Where"),
        ("[jobs.a]\nmanual = true", 1, "one of task, command, http"),
        ("[jobs.a]\ntask = 3\nmanual = true", 2, "task '3'"),
        ("[jobs.a]\ntask = 't'\nargs = {}\nmanual = true", 3, "a list is wanted"),
        ("[jobs.a]\ntask = 't'\nkwargs = []\nmanual = true", 3, "a table is wanted"),
        ("[jobs.a]\ncommand = ['a']\nargs = []\nmanual = true", 3, "goes with task"),
        ("[jobs.a]\ncommand = {argv = ['a'], env = {A = 1}}\nmanual = true", 2, "a table of texts"),
        ("[jobs.a]\nhttp = {url = 'x'}\nmanual = true", 2, "method"),
        ("[jobs.a]\nhttp = {method = 'GET', url = 'x', hdrs = {}}\nmanual = true", 2, "headers"),
        ("[jobs.a]\ntask = 't'\nmanual = 1", 3, "true is wanted"),
        ("[jobs.a]\ntask = 't'\nschedules = []", 3, "a list of tables"),
        ("[jobs.a]\ntask = 't'\nschedules = [3]", 3, "a table is wanted"),
        ("[jobs.a]\ntask = 't'\nmanual = true\noverlap = 'allow:x'", 4, "whole number"),
        ("[jobs.a]\ntask = 't'\nmanual = true\nretry = {attempts = 'x'}", 4, "retry attempts"),
        ("[jobs.a]\ntask = 't'\nmanual = true\npaused = 1", 4, "paused"),
        ("[jobs.a]\ntask = 't'\nmanual = true\nargs = [2026-01-01]", 1, "args[0]"),
        ("[jobs.a]\ntask = 't'\ncron = '0 0 31 2 *'", 3, "never fires"),
        ("[jobs.a]\ntask = 't'\ncron = 5", 3, "text is wanted"),
    ],
)
def test_single_faults(text, line, what):
    found = faults(text)
    assert len(found) == 1, found
    assert found[0][0] == line, found
    assert what in found[0][2], found


def test_calendars():
    found = read("""[calendars.holidays]
tz = "Europe/Berlin"
yearly = ["12-25"]
dates = [2026-05-01]
windows = [{from = 2026-01-01T00:00:00Z, to = 2026-01-02T00:00:00Z}]
[calendars.empty]
[calendars.wrong]
yearly = ["12-25"]
yearlie = []
[calendars.bad]
weekdays = ["mon"]
yearly = ["13-45"]
[calendars."a b"]
weekdays = ["mon"]
""")
    assert list(found.calendars) == ["holidays"]
    assert [(f.line, f.place) for f in found.faults] == [
        (6, "calendars.empty"), (9, "calendars.wrong.yearlie"), (12, "calendars.bad.yearly"), (13, 'calendars."a b"'),
    ]


def test_all_faults_of_one_job_come_at_once():
    text = """[jobs.a]
task = 5
kwargs = []
args = {}
retry = "x"
heartbeat_timeout = 0
note = 1
paused = "no"
cron = "* *"
"""
    assert sorted(line for line, _, _ in faults(text)) == [2, 3, 4, 5, 6, 7, 8, 9]


def test_what_is_nested_without_end():
    assert "nested too deep" in faults("[jobs.a]\nargs = " + 5_000 * "[" + 5_000 * "]")[0][2]


def test_the_zone_of_the_defaults_is_the_calendars_too():
    found = read("""[calendars.a]
yearly = ["12-25"]
[calendars.b]
yearly = ["12-25"]
tz = "UTC"
[defaults]
tz = "Europe/Berlin"
""")
    assert {name: table["tz"] for name, table in found.calendars.items()} == {"a": "Europe/Berlin", "b": "UTC"}


def test_lines_of_everything():
    text = '''a.b = 1 # c
"x y".'z' = """
q = 3
"""
[t."u.v"]   # [no]
k = [1, # ]
  {m = "]", n = [2,
     3]}]
[[arr]]
p = 'it''s'
[[arr]]
p = 2020-01-01T00:00:00Z
'''.replace("'it''s'", "'its'")
    lines = toml_lines(text)
    wanted = {("a", "b"): 1, ("x y", "z"): 2, ("t", "u.v"): 5, ("t", "u.v", "k"): 6, ("t", "u.v", "k", 1, "m"): 7, ("t", "u.v", "k", 1, "n", 1): 8,
              ("arr", 0, "p"): 10, ("arr", 1, "p"): 12}
    assert {path: lines.get(path) for path in wanted} == wanted
    assert line_of(lines, ("t", "u.v", "no", "such")) == 5
    assert line_of(lines, ("nothing",)) == 1


KEYS = st.sampled_from(["jobs", "defaults", "a", '"n/a"', "task", "cron", "every", "tz", "args", "command", "retry", "overlap", "at", "schedules"])
VALUES = st.recursive(
    st.sampled_from(["1", '"x"', "'0 0 * * *'", "true", '"""\na\n"""', "1.5", "2026-01-01", "nan", "2026-01-01T00:00:00Z"]),
    lambda inner: st.lists(inner, max_size=3).map(lambda v: "[" + ",\n ".join(v) + "]") | st.lists(st.tuples(KEYS, inner), max_size=3).map(
        lambda v: "{" + ", ".join(f"{k} = {x}" for k, x in v) + "}"), max_leaves=6,
)
LINES = st.one_of(st.tuples(KEYS, VALUES).map(lambda p: f"{p[0]} = {p[1]}"), st.lists(KEYS, min_size=1, max_size=3).map(lambda k: f"[{'.'.join(k)}]"),
                  st.just("# c"), st.text(max_size=10))


@pytest.mark.slow
@given(st.lists(LINES, max_size=12).map("\n".join))
def test_any_text_gives_jobs_or_faults(text):
    found = read(text)
    assert found.faults or len(found.jobs) == found.tables
    assert len(found.jobs) == len(found.lines)
    for fault in found.faults:
        assert 1 <= fault.line <= text.count("\n") + 1
        assert fault.text


def test_retry_rules_by_error():
    found = read("""
[jobs."a/b"]
task = "t"
every = "60s"
retry = {attempts = 5, not_on = ["KeyError"], errors = {"requests.Timeout" = {attempts = 8, backoff = "1s"}, ValueError = 1}}
""")
    assert found.faults == []
    rules = {"requests.Timeout": Retry(8, "1s"), "ValueError": 1}
    assert found.jobs[0].policies["retry"] == Retry(5, not_on=("KeyError",), errors=rules)


@pytest.mark.parametrize(("errors", "place", "said"), [
    ("{A = {attempt = 1}}", "jobs.x.retry.errors.A.attempt", "did you mean 'attempts'"),
    ("{A = {attempts = 0}}", "jobs.x.retry", "from 1 to"),
    ('{A = "often"}', "jobs.x.retry", "a number of attempts"),
    ('{A = {not_on = ["B"]}}', "jobs.x.retry.errors.A.not_on", "unknown key"),
    ('["A"]', "jobs.x.retry", "exception types"),
])
def test_rules_by_error_that_can_not_be(errors, place, said):
    (fault,) = faults(f'[jobs.x]\ntask = "t"\nevery = "60s"\nretry = {{attempts = 5, errors = {errors}}}\n')
    assert fault[1] == place
    assert said in fault[2]
