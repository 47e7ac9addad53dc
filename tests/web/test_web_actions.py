"""Actions: what they do, that each needs its own form in the browser that was shown it, and that nothing else does anything."""

import html
import re
from urllib.parse import urlencode

import pytest

from tests.rigs.web import Site, filled
from wheelsched import Call, Every
from wheelsched.protocol.verbs import MUTATING
from wheelsched.web import actions
from wheelsched.web.app import Settings

FORM = "application/x-www-form-urlencoded"
HERE = {"origin": "http://127.0.0.1:8420", "sec-fetch-site": "same-origin", "content-type": FORM}


@pytest.fixture
def acting(sim):
    filled(sim)
    with Site(sim, Settings(allow_actions=True)) as made:
        yield made


def shown(site, **query):
    """The fields of the form that a page of `ask` has, and the cookie."""
    answer = site.get("/ask?" + urlencode(query, doseq=True))
    assert answer.status_code == 200, answer.text
    fields = [(name, html.unescape(value)) for name, value in re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', answer.text)]
    return fields, answer.headers["set-cookie"].partition(";")[0]


def send(site, fields, cookie, **headers):
    given = {**HERE, "cookie": cookie, **{k.replace("_", "-"): v for k, v in headers.items()}}
    return site.request("POST", "/do", content=urlencode(fields).encode(), headers=given)


def do(site, typed=None, note=None, **query):
    fields, cookie = shown(site, **query)
    fields += [(k, v) for k, v in (("typed", typed), ("note", note)) if v is not None]
    return send(site, fields, cookie)


def changes(site):
    return [verb for verb in site.client.asked if verb in MUTATING]


def test_run_now_pause_and_resume(acting):
    ws = acting.sim.client
    before = len(list(ws.runs("manual")))
    assert "1 job started" in do(acting, do="trigger", chosen="manual").text
    assert len(list(ws.runs("manual"))) == before + 1
    assert "1 job paused" in do(acting, do="pause", chosen="reports/daily", note="<b>until Monday").text
    assert (ws.get("reports/daily").state, ws.get("reports/daily").pause_note) == ("paused", "<b>until Monday")
    assert "1 job resumed" in do(acting, do="resume", chosen="reports/daily").text
    assert ws.get("reports/daily").state == "active"


def test_several_jobs_want_a_typed_number_and_tell_what_was_refused(acting):
    answer = do(acting, do="pause", chosen=["reports/daily", "manual", "no/such"], typed="3")
    assert "2 jobs paused" in answer.text
    assert "no/such:" in answer.text
    assert acting.sim.client.get("manual").state == "paused"


def test_cancel(acting):
    run = acting.sim.client.enqueue(Call("shop.report", "x"), delay="1h")
    assert "Cancel" in acting.get(f"/run?id={run.id}").text
    assert "the run is cancelled" in do(acting, do="cancel", chosen=run.id).text
    assert acting.sim.client.run(run.id).state == "cancelled"


def test_dead_letters_one_some_and_all(acting):
    ws = acting.sim.client
    ids = [letter.id for letter in ws.dead()]
    assert len(ids) == 3
    assert "1 dead letter sent back" in do(acting, do="redrive", chosen=ids[0], typed="1").text
    assert "1 dead letter discarded" in do(acting, do="discard", chosen=ids[1], typed="1").text
    assert [letter.id for letter in ws.dead()] == [ids[2]]
    assert "1 dead letter discarded" in do(acting, do="discard", match="billing", error="ValueError", typed="1").text
    assert list(ws.dead()) == []


def test_no_more_than_was_confirmed(acting):
    fields, cookie = shown(acting, do="discard")
    acting.sim.advance("2h")  # two more have died meanwhile
    assert len(list(acting.sim.client.dead())) == 5
    assert "3 dead letters discarded" in send(acting, [*fields, ("typed", "3")], cookie).text
    assert len(list(acting.sim.client.dead())) == 2


def test_to_ask_changes_nothing(acting):
    digest = acting.sim.engine.state.digest()
    for query in ("do=trigger&chosen=manual", "do=discard", "do=redrive&task=shop.charge", "do=pause&chosen=manual&chosen=..", "do=cancel&chosen=" + "0" * 32):
        assert acting.get(f"/ask?{query}").status_code == 200
        assert acting.request("HEAD", f"/ask?{query}").status_code == 200
    assert acting.sim.engine.state.digest() == digest


@pytest.mark.parametrize("query", [
    "", "do=delete&chosen=manual", "do=trigger", "do=cancel&chosen=a&chosen=b", "do=pause&chosen=" + "x" * 300, "do=discard&error=" + "x" * 300,
    "do=pause&" + "&".join(f"chosen=j{i}" for i in range(101)), "do=redrive&task=a b", "do=pause&chosen=%00",
])
def test_what_can_not_be_asked(acting, query):
    assert acting.get(f"/ask?{query}").status_code in (400, 404)


def fields_with(fields, **changed):
    return [(name, changed.get(name, value)) for name, value in fields]


TAMPERED = {
    "no cookie": lambda f, c: (f, "", {}),
    "another browser": lambda f, c: (f, "wheelsched_web=" + "a" * 32, {}),
    "a wrong token": lambda f, c: (fields_with(f, token="0" * 64), c, {}),
    "an empty token": lambda f, c: (fields_with(f, token=""), c, {}),
    "no token": lambda f, c: ([p for p in f if p[0] != "token"], c, {}),
    "a token that is no ASCII": lambda f, c: (fields_with(f, token="\u00e9" * 64), c, {}),
    "another once": lambda f, c: (fields_with(f, once="1-" + "0" * 32), c, {}),
    "a once that is no number": lambda f, c: (fields_with(f, once="x"), c, {}),
    "no once": lambda f, c: ([p for p in f if p[0] != "once"], c, {}),
    "another action": lambda f, c: (fields_with(f, do="discard"), c, {}),
    "an unknown action": lambda f, c: (fields_with(f, do="delete"), c, {}),
    "another job": lambda f, c: (fields_with(f, chosen="billing/charge"), c, {}),
    "one job more": lambda f, c: ([*f, ("chosen", "billing/charge")], c, {}),
    "a filter more": lambda f, c: ([p for p in fields_with(f, do="discard") if p[0] != "chosen"] + [("match", "*")], c, {}),
    "another count": lambda f, c: (fields_with(f, count="2"), c, {}),
    "a count that is none": lambda f, c: (fields_with(f, count="-1"), c, {}),
    "a cross-site request": lambda f, c: (f, c, {"sec_fetch_site": "cross-site"}),
    "a same-site request": lambda f, c: (f, c, {"sec_fetch_site": "same-site"}),
    "a typed address": lambda f, c: (f, c, {"sec_fetch_site": "none"}),
    "another origin": lambda f, c: (f, c, {"origin": "http://evil.example"}),
    "another port": lambda f, c: (f, c, {"origin": "http://127.0.0.1:8421"}),
    "an opaque origin": lambda f, c: (f, c, {"origin": "null"}),
    "an origin that only begins so": lambda f, c: (f, c, {"origin": "http://127.0.0.1:8420.evil.example"}),
    "an origin with a user": lambda f, c: (f, c, {"origin": "http://127.0.0.1:8420@evil.example"}),
    "another scheme": lambda f, c: (f, c, {"origin": "ftp://127.0.0.1:8420"}),
    "no word of where from": lambda f, c: (f, c, {"origin": None, "sec_fetch_site": None}),
    "JSON": lambda f, c: (f, c, {"content_type": "application/json"}),
    "plain text": lambda f, c: (f, c, {"content_type": "text/plain"}),
    "a multipart form": lambda f, c: (f, c, {"content_type": "multipart/form-data; boundary=x"}),
    "no content type": lambda f, c: (f, c, {"content_type": None}),
    "a foreign host": lambda f, c: (f, c, {"host": "evil.example"}),
    "too many fields": lambda f, c: ([*f, *((f"x{i}", "y") for i in range(200))], c, {}),
    "a body too large": lambda f, c: ([*f, ("note", "x" * 70_000)], c, {}),
    "a note too long": lambda f, c: ([*f, ("note", "x" * 2_000)], c, {}),
    "a note that can't be shown": lambda f, c: ([*f, ("note", "a\u202eb")], c, {}),
}


@pytest.mark.parametrize("how", TAMPERED)
def test_nothing_is_done_for(acting, how):
    fields, cookie = shown(acting, do="pause", chosen="manual")
    fields, cookie, headers = TAMPERED[how](fields, cookie)
    digest = acting.sim.engine.state.digest()
    answer = send(acting, fields, cookie, **headers)
    assert 400 <= answer.status_code < 500, answer.text
    assert acting.sim.engine.state.digest() == digest
    assert "Traceback" not in answer.text


def test_a_form_is_good_once_and_for_an_hour(acting, monkeypatch):
    fields, cookie = shown(acting, do="trigger", chosen="manual")
    assert send(acting, fields, cookie).status_code == 200
    assert send(acting, fields, cookie).status_code == 403
    fields, cookie = shown(acting, do="trigger", chosen="manual")
    now = actions.time.monotonic() + 4_000
    monkeypatch.setattr(actions.time, "monotonic", lambda: now)
    assert send(acting, fields, cookie).status_code == 403


@pytest.mark.parametrize("typed", ["", "2", "30", "-3", "three", None])
def test_a_number_that_is_not_the_count_is_refused(acting, typed):
    digest = acting.sim.engine.state.digest()
    assert do(acting, do="discard", typed=typed).status_code == 400
    assert acting.sim.engine.state.digest() == digest


@pytest.mark.parametrize(("method", "path"), [
    ("PUT", "/do"), ("DELETE", "/do"), ("PATCH", "/do"), ("POST", "/ask"), ("POST", "/"), ("POST", "/jobs"), ("POST", "/do/"), ("POST", "/do/x"), ("GET", "/do"),
])
def test_only_one_address_takes_one_method(acting, method, path):
    fields, cookie = shown(acting, do="pause", chosen="manual")
    answer = acting.request(method, path, content=urlencode(fields).encode(), headers={**HERE, "cookie": cookie})
    assert answer.status_code in (404, 405)
    assert acting.sim.client.get("manual").state == "active"


def test_the_cookie_is_for_this_dashboard_alone(acting):
    cookie = acting.get("/ask?do=trigger&chosen=manual").headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "domain" not in cookie


def test_without_the_flag_nothing_whatever_is_done(sim):
    """A form of a dashboard with actions, sent in every way to one without."""
    filled(sim)
    with Site(sim, Settings(allow_actions=True)) as acting:
        fields, cookie = shown(acting, do="pause", chosen="manual")
    body = urlencode(fields)
    digest = sim.engine.state.digest()
    with Site(sim) as site:
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
            for path in ("/do", "/ask", "/", "/jobs", "/job?name=manual", "/run", "/dead", f"/do?{body}", f"/ask?{body}", f"/jobs?{body}", "//do", "/do%2F", "/./do"):
                answer = site.request(method, path, content=body.encode(), headers={**HERE, "cookie": cookie, "x-http-method-override": "POST"})
                assert answer.status_code != 200 or method in ("GET", "HEAD"), (method, path)
        assert changes(site) == []
        for path in ("/", "/jobs", "/job?name=manual", "/dead"):
            text = site.get(path).text
            assert not re.search(r'/ask|/do"|method="post"|Pause<|type="checkbox" name="chosen"', text), path
    assert sim.engine.state.digest() == digest


def test_pages_with_actions_escape_as_well(acting):
    acting.sim.client.put("x/y", Call("shop.report", 1), Every("1h"), note="<script>alert(1)</script>")
    for path in ("/", "/jobs", "/job?name=x/y", "/dead", "/ask?do=discard&match=%3Cscript%3Ealert(1)", "/ask?do=pause&chosen=%3Cscript%3Ealert(1)"):
        assert "<script>alert" not in acting.get(path).text
