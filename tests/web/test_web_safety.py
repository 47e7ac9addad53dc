"""What a request can't do: change anything, come under a foreign name, be framed, be endless, be slow."""

import pytest

from tests.rigs.web import Site
from wheelsched.model.errors import ConfigError
from wheelsched.protocol.verbs import MUTATING
from wheelsched.web.app import Settings
from wheelsched.web.serving import parse_address, parse_base

METHODS = ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "FOO")
PATHS = ("/", "/jobs", "/job?name=manual", "/runs", "/dead", "/metrics", "/static/live.js", "/nope", "/do")


@pytest.mark.parametrize("method", METHODS)
def test_only_reading_is_allowed(site, method):
    for path in PATHS:
        answer = site.request(method, path)
        assert answer.status_code == 405, (method, path)
        assert answer.headers["allow"] == "GET, HEAD"
    assert not set(site.client.asked) & MUTATING


def test_no_page_asks_for_a_change(site):
    for path in (*PATHS, "/runs?skipped=1", "/jobs?match=x&state=paused", "/job?name=billing/charge&do=delete", "/jobs?action=pause"):
        site.get(path)
        site.request("HEAD", path)
    assert not set(site.client.asked) & MUTATING


@pytest.mark.parametrize("host", [
    "evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8420", "evil.example:8420", "", "[::2]:8420", "127.0.0.2", "0.0.0.0", "127.1",
    "2130706433", "localhost:8420@evil.example", "localhost evil.example",
])
def test_a_foreign_name_is_refused(site, host):
    assert site.get("/", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["localhost", "localhost:8420", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:9", "[::1]:8420", "[::1]"])
def test_names_of_this_machine_are_served(site, host):
    assert site.get("/health", headers={"host": host}).status_code == 200


def test_a_name_of_a_proxy_is_served_when_it_is_named(sim):
    with Site(sim, Settings(hosts=frozenset({"jobs.example.com"}))) as site:
        assert site.get("/health", headers={"host": "jobs.example.com"}).status_code == 200
        assert site.get("/health", headers={"host": "other.example.com", "x-forwarded-host": "jobs.example.com"}).status_code == 421


def test_every_answer_has_the_safe_headers(site):
    for path in (*PATHS, "/jobs?state=nope"):
        for answer in (site.get(path), site.request("POST", path), site.get(path, headers={"host": "x"})):
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["x-frame-options"] == "DENY"
            assert answer.headers["referrer-policy"] == "same-origin"
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert "*" not in policy
            assert "set-cookie" not in answer.headers
            assert "server" not in answer.headers


def test_pages_are_not_kept_by_the_browser_and_files_are(site):
    assert site.get("/").headers["cache-control"] == "no-store"
    assert "max-age" in site.get("/static/style.css").headers["cache-control"]


def test_long_addresses_and_bodies_are_refused(site):
    assert site.get("/jobs?match=" + "x" * 9_000).status_code == 414
    assert site.request("GET", "/jobs", content=b"x" * 100_000).status_code == 413
    assert site.request("GET", "/jobs", headers={"content-length": "-1"}).status_code == 413


@pytest.mark.parametrize("text", ["0.0.0.0:80", "[::]:80", "192.168.1.5:8420", "example.com:80", ":8420", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999", "10.0.0.1:1", ""])
def test_only_addresses_of_this_machine(text):
    with pytest.raises(ConfigError):
        parse_address(text)


def test_addresses_of_this_machine():
    assert parse_address("127.0.0.1:8420") == ("127.0.0.1", 8420)
    assert parse_address("[::1]:0") == ("::1", 0)
    assert parse_address("localhost:1") == ("localhost", 1)


@pytest.mark.parametrize("text", ["jobs", "/a/../b", "//evil.example", "/a//b", "/a b", '/"><script>', "/a?b", "/%2e%2e", "/" + "x" * 300])
def test_a_base_path_is_a_path(text):
    with pytest.raises(ConfigError):
        parse_base(text)


def test_base_paths():
    assert parse_base("") == parse_base("/") == ""
    assert parse_base("/jobs/") == "/jobs"
    assert parse_base("/a/b-c") == "/a/b-c"
