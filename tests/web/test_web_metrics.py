"""What Prometheus gets: names, labels, both formats; checked by promtool where that is installed."""

import re
import shutil
import subprocess

import pytest

from tests.rigs.web import Site
from wheelsched.web.metrics import QUEUES_MAX

OPEN = "application/openmetrics-text; version=1.0.0"


def test_the_names_are_those_that_were_agreed(site):
    text = site.get("/metrics").text
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert names == {f"wheelsched_{name}" for name in (
        "build_info", "tzdata_info", "jobs", "runs_total", "attempts_total", "dead_letters", "workers", "connections", "store_bytes", "queue_depth",
        "queued_lag_seconds", "start_lag_seconds", "done_lag_seconds", "queue_oldest_age_seconds", "queue_paused", "upcoming_fires", "upcoming_peak_fires",
    )}
    assert 'wheelsched_build_info{version="9.9.9"} 1.0' in text
    assert "wheelsched_dead_letters 3.0" in text
    assert 'wheelsched_attempts_total{outcome="failed"} 3.0' in text


def test_lags_are_histograms_in_seconds(site):
    text = site.get("/metrics").text
    assert 'wheelsched_queued_lag_seconds_bucket{le="0.1"} 990.0' in text
    assert 'wheelsched_queued_lag_seconds_bucket{le="+Inf"} 1000.0' in text
    assert "wheelsched_queued_lag_seconds_count 1000.0" in text
    assert "wheelsched_queued_lag_seconds_sum 12.5" in text


def test_no_name_of_a_job_is_in_a_label(site):
    text = site.get("/metrics").text
    assert "billing/charge" not in text
    assert "reports/daily" not in text


def test_openmetrics_where_it_is_asked_for(site):
    answer = site.get("/metrics", headers={"accept": OPEN})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


def test_a_scrape_asks_two_questions(site):
    site.get("/metrics")
    site.client.asked.clear()
    site.get("/metrics")
    assert set(site.client.asked) <= {"stats", "queues"}
    assert len(site.client.asked) <= 2


def test_thousands_of_queues_are_folded(sim):
    for i in range(QUEUES_MAX + 20):
        sim.client.queue(f"q{i:04}", concurrency=1)
    with Site(sim) as site:
        text = site.get("/metrics").text
    assert len(re.findall(r"wheelsched_queue_paused\{", text)) == QUEUES_MAX
    assert 'wheelsched_queue_depth{queue="(others)",state="queued"}' in text


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
def test_promtool_finds_no_fault(site):
    checked = subprocess.run(["promtool", "check", "metrics"], input=site.get("/metrics").text, capture_output=True, text=True, timeout=20, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
