"""The dashboard in a real Chromium: what is seen and heard, at any width, in light and dark, with and without scripts."""

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from wheelsched import Call, Every
from wheelsched.model.errors import UnavailableError
from wheelsched.testing import Simulator

CHROMIUM = shutil.which("chromium")
LACKING = [name for name, there in (("chromium", CHROMIUM), ("playwright for Python", find_spec("playwright"))) if not there]
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(LACKING), reason=f"{' and '.join(LACKING)} not installed: no browser has looked at the dashboard"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of playwright's own process, at its end
]
LOOKS = [(360, "dark"), (1280, "light"), (2560, "light")]
PICTURES = os.environ.get("WHEELSCHED_PICTURES")  # a folder: pictures of all pages are kept there


@pytest.fixture(scope="module")
def sim():
    from tests.rigs.web import START, charge, filled, report

    with Simulator(start=START, tasks={"shop.charge": charge, "shop.report": report}) as made:
        filled(made)
        yield made


@pytest.fixture(scope="module")
def served(sim):
    from tests.rigs.web_served import Served

    with Served(sim) as made:
        yield made


@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Watched:
    """A page, and all that went wrong in it."""

    def __init__(self, browser, served, width=1280, scheme="light", **options):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, base_url=served.url, **options)
        self.context.set_default_timeout(15_000)
        self.page = self.context.new_page()
        self.faults = []
        self.page.on("console", lambda said: self.faults.append(said.text) if said.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.faults.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda asked: None if asked.url.startswith(served.url + "/") else self.faults.append(asked.url))

    def __enter__(self):
        return self

    def __exit__(self, kind, *error):
        self.context.close()
        if kind is None:
            assert self.faults == []


@pytest.fixture(scope="module")
def paths(sim):
    runs = {run.state: run.id for run in sim.client.runs()}
    return {
        "overview": "/", "jobs": "/jobs", "job": "/job?name=reports/daily", "paused": "/job?name=etl/paused", "runs": "/runs?skipped=1",
        "run": f"/run?id={runs['dead']}", "good": f"/run?id={runs['succeeded']}", "dead": "/dead",
    }


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_every_page_at_every_width(chromium, served, paths, width, scheme):
    with Watched(chromium, served, width, scheme) as w:
        for name, path in paths.items():
            w.page.goto(path)
            assert w.page.evaluate("document.documentElement.scrollWidth") <= width, f"{name} has to be scrolled sideways"
            assert w.page.get_by_role("main").is_visible()
            assert w.page.get_by_role("navigation", name="Pages").get_by_role("link").count() == 4
            assert w.page.get_by_role("heading", level=1).count() == 1
            assert "UTC" in w.page.locator("#server").inner_text()
            if PICTURES:
                w.page.screenshot(path=Path(PICTURES, f"{name}-{width}-{scheme}.png"), full_page=True)


def test_what_a_tired_person_reads_first(chromium, served):
    with Watched(chromium, served) as w:
        w.page.goto("/")
        verdict = w.page.get_by_role("status", name="Is all well")
        assert verdict.inner_text().startswith("Something needs you.")
        assert "1 job died again and again: billing/charge (3 in a row)" in verdict.inner_text()
        assert verdict.bounding_box()["y"] < 200
        assert w.page.get_by_role("link", name="dead letters 3 out of attempts").is_visible()
        assert w.page.get_by_role("img", name="starts each minute of the next hour").is_visible()


def test_the_keyboard_alone_finds_a_job(chromium, served):
    with Watched(chromium, served) as w:
        w.page.goto("/jobs")
        w.page.keyboard.press("Tab")
        assert w.page.evaluate("document.activeElement.textContent") == "Skip to the content"
        w.page.get_by_role("searchbox", name="Name").focus()
        w.page.keyboard.type("charge")
        w.page.keyboard.press("Enter")
        w.page.wait_for_url("**/jobs?match=charge&state=")
        links = w.page.get_by_role("region", name="Jobs").get_by_role("link")
        assert links.all_inner_texts() == ["billing/charge"]
        links.first.focus()
        w.page.keyboard.press("Enter")
        w.page.wait_for_url("**/job?name=billing%2Fcharge")
        assert w.page.get_by_role("heading", level=1).inner_text().startswith("billing/charge")


def test_without_scripts_every_page_is_whole(chromium, served, paths):
    with Watched(chromium, served, java_script_enabled=False) as w:
        for path in paths.values():
            w.page.goto(path)
            assert w.page.get_by_role("heading", level=1).count() == 1
        w.page.goto("/runs")
        w.page.get_by_label("State").select_option("dead")
        w.page.get_by_role("button", name="Search").click()
        assert set(w.page.locator("td .state").all_inner_texts()) == {"dead"}
        assert not w.page.get_by_role("button", name="Live").is_visible()


def test_a_page_is_brought_up_to_date_by_itself(chromium, served, sim):
    with Watched(chromium, served) as w:
        w.page.clock.install()
        w.page.goto("/jobs")
        served.do(lambda: sim.client.put("zz/fresh", Call("x.y"), Every("1h")))
        w.page.clock.fast_forward(5_000)
        w.page.get_by_role("link", name="zz/fresh").wait_for()
        w.page.get_by_role("button", name="Live").click()
        assert w.page.get_by_role("button", name="Paused").get_attribute("aria-pressed") == "false"
        served.do(lambda: sim.client.delete("zz/fresh"))


def test_a_server_that_is_gone_and_comes_back(chromium, served):
    with Watched(chromium, served) as w:
        w.page.clock.install()
        served.client.broken = UnavailableError("no server")
        try:
            w.page.goto("/jobs")
            assert w.page.get_by_role("alert").inner_text().startswith("The server does not answer")
            assert w.page.get_by_role("heading", name="What to do").is_visible()
        finally:
            served.client.broken = None
        w.page.clock.fast_forward(5_000)
        w.page.get_by_role("link", name="billing/charge").wait_for()
        w.faults[:] = [fault for fault in w.faults if "503" not in fault]  # the browser tells of the page itself


@pytest.mark.skipif(find_spec("axe_playwright_python") is None, reason="axe-playwright-python is not installed")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_barrier(chromium, served, paths, scheme):
    from axe_playwright_python.sync_playwright import Axe

    with Watched(chromium, served, scheme=scheme, bypass_csp=True) as w:
        for path in paths.values():
            w.page.goto(path)
            found = Axe().run(w.page).response["violations"]
            assert found == [], [(path, rule["id"], [node["html"][:120] for node in rule["nodes"]][:4]) for rule in found]


def test_a_job_is_paused_and_dead_letters_are_discarded_by_hand(chromium):
    from tests.rigs.web import START, charge, filled, report
    from tests.rigs.web_served import Served
    from wheelsched.web.app import Settings

    with Simulator(start=START, tasks={"shop.charge": charge, "shop.report": report}) as sim:
        filled(sim)
        with Served(sim, Settings(allow_actions=True)) as served, Watched(chromium, served) as w:
            w.page.goto("/job?name=manual")
            w.page.get_by_role("link", name="Pause").click()
            w.page.get_by_label("Why?").fill("until Monday")
            w.page.get_by_role("button", name="Pause: manual").click()
            assert w.page.get_by_role("status").inner_text() == "1 job paused"
            w.page.goto("/dead")
            for box in w.page.get_by_role("checkbox").all()[:2]:
                box.check()
            w.page.get_by_role("button", name="Discard the chosen ones").click()
            w.page.get_by_label("To confirm, type the number").fill("2")
            w.page.get_by_role("button", name="Discard: 2 dead letters").click()
            assert w.page.get_by_role("status").inner_text() == "2 dead letters discarded"
            assert served.do(lambda: (sim.client.get("manual").pause_note, len(list(sim.client.dead())))) == ("until Monday", 1)
