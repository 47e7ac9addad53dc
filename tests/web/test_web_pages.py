"""Pages of the dashboard, on the simulator: what they say, what they escape, how much they ask."""

import json
import re
from base64 import urlsafe_b64encode
from html.parser import HTMLParser

import pytest

from tests.rigs.web import EVIL, Site, filled
from wheelsched import Call, Every
from wheelsched.model.errors import DeadlineExceededError, UnavailableError
from wheelsched.web.app import Settings

PATHS = ("/", "/jobs", "/runs", "/dead", "/job?name=billing/charge", "/job?name=reports/daily", "/job?name=etl/paused&edits=1", "/runs?skipped=1",
         "/runs?job=billing/charge", "/jobs?match=charge", "/dead?error=ValueError")


class Elements(HTMLParser):
    """Tags of a page, with their attributes."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def every_path(site):
    runs = [f"/run?id={run.id}" for run in site.sim.client.runs() if run.state != "skipped"]
    return [*PATHS, runs[0], runs[-1]]


def test_every_page_answers(site):
    for path in every_path(site):
        answer = site.get(path)
        assert answer.status_code == 200, (path, answer.text)
        assert "Traceback" not in answer.text or path.startswith("/run?")


def test_nothing_that_others_stored_becomes_markup(site):
    for path in every_path(site):
        elements = Elements(site.get(path).text).found
        loaded = [attrs["src"].partition("?")[0] for tag, attrs in elements if tag in ("script", "img", "iframe", "object", "embed")]
        assert sorted(loaded) == ["/static/icon.svg", "/static/live.js"], path
        assert not [attrs for _, attrs in elements if any(name.startswith("on") or name == "style" for name in attrs)], path
        assert not {"\u202e", "\x1b"} & set(site.get(path).text), path


def test_what_the_server_tells_of_others_is_escaped_too(sim):
    filled(sim)
    worker = {"id": EVIL, "name": EVIL, "kind": "external", "leased": 0, "ready": True}
    told = {
        "workers": [worker], "queues": {EVIL: {"queued": 1, "leased": 0}}, "unserved_tasks": {EVIL: 3}, "held": True, "hold_note": EVIL,
        "held_since_us": sim.now_us, "held_back": [{"task": EVIL, "runs": 2, "reason": EVIL}], "start_failure": {"text": EVIL, "tries": 2}, "data": EVIL,
    }
    with Site(sim, **told) as site:
        page = site.get("/")
        assert page.status_code == 200
        assert "<script>alert" not in page.text
        assert "<img src=x" not in page.text
        assert "&lt;script&gt;" in page.text


@pytest.mark.parametrize("path", ["/jobs?match={}", "/runs?job={}", "/runs?task={}", "/dead?error={}", "/job?name={}", "/run?id={}", "/nope/{}", "/jobs?state={}"])
def test_what_comes_in_the_address_is_escaped(site, path):
    answer = site.get(path.format("%3Cscript%3Ealert(1)%3C%2Fscript%3E%22%27"))
    assert answer.status_code in (200, 400, 404)
    assert "<script>alert" not in answer.text


def test_the_overview_says_whether_all_is_well_in_the_words_of_status(sim):
    with Site(sim) as site:
        assert "All is well." in site.get("/").text
    filled(sim)
    with Site(sim) as site:
        assert "1 job died again and again" in site.get("/").text
    sim.client.hold("moving house")
    with Site(sim) as site:
        page = site.get("/").text
    assert "Something needs you." in page
    assert "HELD (moving house) since" in page
    assert "wheelsched admin release" in page


def test_each_time_has_its_zone_utc_and_how_far_it_is(site):
    page = site.get("/job?name=reports/daily").text
    times = re.findall(r"<time datetime=\"([^\"]+)\"><b>([^<]+)</b> <span class=\"abs\">(.*?)</span></time>", page)
    assert len(times) >= 10
    assert all(re.fullmatch(r"[\d-]+T[\d:.]+Z", iso) for iso, _, _ in times)
    assert all(re.search(r"in |ago|now", apart) for _, apart, _ in times)
    first = next(shown for iso, _, shown in times if iso == "2026-03-29T01:00:00Z")
    assert first.startswith("2026-03-29 03:00:00 +02:00 (01:00:00Z)")  # the first instant after the gap
    assert "DST" in first
    assert re.search(r"2026-03-28 15:0\d:\d\d UTC", page)  # the server's clock


def test_edits_tell_who_changed_what(site):
    page = site.get("/job?name=etl/paused&edits=1").text
    assert "<del>active</del>" in page
    assert "<ins>paused</ins>" in page
    site.client.asked.clear()
    assert "Who changed it, when, from what" in site.get("/job?name=etl/paused").text
    assert "history" not in site.client.asked


def test_no_page_asks_more_than_a_few_questions(site):
    for path in every_path(site):
        site.client.asked.clear()
        site.get(path)
        assert len(site.client.asked) <= 6, (path, site.client.asked)


def test_many_browsers_share_one_answer(site):
    site.get("/")
    site.client.asked.clear()
    for _ in range(20):
        site.get("/")
    assert site.client.asked.count("stats") <= 3
    assert site.client.asked.count("forecast") == 0


def test_pages_of_jobs_lead_through_all_of_them(sim):
    for i in range(130):
        sim.client.put(f"many/j{i:03}", Call("x.y"), Every("1h"))
    seen, path = [], "/jobs"
    with Site(sim) as site:
        while path:
            page = site.get(path).text
            seen += re.findall(r"/job\?name=many%2Fj(\d+)|/job\?name=many/j(\d+)", page)
            more = re.search(r'href="([^"]+)" rel="next"', page)
            path = more and more[1].replace("&amp;", "&")
    assert sorted(int(a or b) for a, b in seen) == list(range(130))


def test_pages_of_runs_lead_through_all_of_them(sim):
    for _ in range(120):
        sim.client.enqueue(Call("shop.report", "x"))
    sim.advance("1m")
    seen, path = [], "/runs?state=succeeded"
    with Site(sim) as site:
        while path:
            page = site.get(path).text
            seen += re.findall(r"/run\?id=([0-9a-f]{32})", page)
            more = re.search(r'href="([^"]+)" rel="next"', page)
            path = more and more[1].replace("&amp;", "&")
    assert len(seen) == len(set(seen)) == 120


@pytest.mark.parametrize("after", [
    "x", "%00", "A" * 500, *(urlsafe_b64encode(json.dumps(place).encode()).decode() for place in (
        None, {}, [], "x", [["x"]], -1.5, True, 2**70, [1] * 20, {"a": 1}, [None], -(2**62), [1, 2, 3, 4])),
])
@pytest.mark.parametrize("path", ["/jobs", "/runs", "/dead"])
def test_a_position_that_is_none_is_told_and_breaks_nothing(site, path, after):
    answer = site.get(f"{path}?after={after}")
    assert answer.status_code in (200, 400), answer.text
    assert site.get(path).status_code == 200


@pytest.mark.parametrize("query", [
    "state=nope", "since=9999d", "late=2", "job=" + "x" * 300, "task=" + "x" * 300, "queue=%00", "job=a%0ab", "task=a b", "queue=" + "%F0%9F%98%80" * 100,
])
def test_every_parameter_is_clamped(site, query):
    answer = site.get(f"/runs?{query}")
    assert answer.status_code == 400, answer.text
    assert "Traceback" not in answer.text


def test_a_job_whose_name_is_dots_has_a_page(site):
    answer = site.get("/job", params={"name": ".."})
    assert answer.status_code == 200
    assert '<h1 class="name">..' in answer.text


def test_what_is_not_there(site):
    assert site.get("/job?name=no/such").status_code == 404
    assert site.get("/run?id=" + "0" * 32).status_code == 404
    assert site.get("/run?id=zzz").status_code == 404
    assert site.get("/job").status_code == 404
    assert site.get("/static/../app.py").status_code == 404
    assert site.get("/static/%2e%2e%2fapp.py").status_code == 404


@pytest.mark.parametrize("error", [UnavailableError("no server at /run/x: start one with `wheelsched serve`"), DeadlineExceededError("no answer")])
def test_a_server_that_is_gone_is_told_with_what_to_do(site, error):
    site.client.broken = error
    for path in ("/jobs", "/runs", "/dead", "/job?name=manual"):
        answer = site.get(path)
        assert answer.status_code == 503
        assert "The server does not answer" in answer.text
        assert "wheelsched serve" in answer.text
        assert "Traceback" not in answer.text
    site.client.broken = None
    assert site.get("/jobs").status_code == 200


def test_to_try_again_leads_to_a_page_of_the_dashboard_alone(sim):
    filled(sim)
    with Site(sim, Settings(base="/x")) as site:
        site.client.broken = UnavailableError("no server")
        assert '<a href="/x/runs?state=dead&amp;late=1">Try again' in site.get("/x/runs?state=dead&late=1").text
        for path in ("/x//evil.example/", "/x//evil.example", "/x/\\evil.example"):
            links = [attrs["href"] for tag, attrs in Elements(site.get(path).text).found if tag == "a"]
            assert links
            assert all(link.startswith(("/x/", "#")) and "evil" not in link for link in links), links


def test_a_fault_of_the_dashboard_is_a_page_without_a_traceback(site, caplog):
    site.client.broken = ZeroDivisionError("secret detail")
    answer = site.get("/jobs")
    site.client.broken = None
    assert answer.status_code == 500
    assert "its log says where" in answer.text
    assert "secret" not in answer.text
    assert "ZeroDivisionError" in caplog.text


def test_behind_a_path_every_link_stays_below_it(sim):
    filled(sim)
    with Site(sim, Settings(base="/jobs")) as site:
        for path in ("/jobs/", "/jobs/jobs", "/jobs/runs", "/jobs/dead", "/jobs/job?name=billing/charge"):
            answer = site.get(path)
            assert answer.status_code == 200, path
            links = [attrs[name] for _, attrs in Elements(answer.text).found for name in ("href", "src", "action") if attrs.get(name)]
            assert all(link.startswith(("/jobs/", "#")) for link in links), links
        assert site.get("/").status_code == 404
        assert site.get("/jobsx").status_code == 404


def test_nothing_is_asked_of_another_address(site):
    for path in every_path(site):
        links = [attrs[name] for _, attrs in Elements(site.get(path).text).found for name in ("href", "src", "action") if attrs.get(name)]
        assert all(link.startswith(("/", "#")) and not link.startswith("//") for link in links)
    for name in ("style.css", "live.js", "icon.svg"):
        text = site.get(f"/static/{name}").text
        assert set(re.findall(r"https?://[^\"' )]+", text)) <= {"http://www.w3.org/2000/svg"}


def test_a_search_ends_early_says_so_and_finds_a_whole_name_at_once(sim, monkeypatch):
    for i in range(300):
        sim.client.put(f"many/j{i:03}", Call("x.y"), Every("1h"))
    monkeypatch.setattr("wheelsched.web.reader._QUESTIONS_MAX", 1)
    monkeypatch.setattr("wheelsched.web.reader._SEARCH_S", 0)
    monkeypatch.setattr("wheelsched.reads.reads.LOOKED_AT_MAX", 50)
    with Site(sim) as site:
        page = site.get("/jobs?match=j29").text
        assert "Nothing found so far: there is more to look through." in page
        for _ in range(12):
            more = re.search(r'href="([^"]+)" rel="next"', page)
            if "many/j290" in page or more is None:
                break
            page = site.get(more[1].replace("&amp;", "&")).text
        assert "many/j290" in page
        assert "many/j299" in site.get("/jobs?match=many/j299").text
