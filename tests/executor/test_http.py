"""The built-in task `http`: statuses, Retry-After, signatures, redirects, and where it may connect to."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import ssl
import subprocess
import threading
import time
import traceback
from email.utils import format_datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheelsched import Call, Http, InvalidArgumentError, PayloadError, Retry
from wheelsched.executor.http import HttpFailed, HttpRefused, http, retry_after_s
from wheelsched.executor.network import permitted
from wheelsched.model.errors import ConfigError
from wheelsched.process.contract import Allowed, networks, read_secrets
from wheelsched.simulator.simulator import Simulator
from wheelsched.tasks.tasks import enter_run

pytest.importorskip("urllib3", reason="urllib3 is not installed")
LOCAL = Allowed(http=True, http_nets=("127.0.0.0/8",))
RUN = bytes(range(16))


@pytest.fixture(autouse=True)
def run():
    """The test is user code of a run with a timeout of 10 s."""
    batch = SimpleNamespace(ids=RUN, specs=[{"timeout_us": 10_000_000}], spec_of=[0])
    enter_run((batch, 0))
    yield RUN.hex()
    enter_run(None)


class Handler(BaseHTTPRequestHandler):
    """/STATUS answers so; a header or a body that a test set goes with it."""

    def answer(self):
        size = int(self.headers["Content-Length"] or 0)
        self.server.seen.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, self.rfile.read(size)))
        more = self.server.answers.get(self.path.partition("?")[0], {})
        self.send_response(more.get("status", 200))
        for name, value in more.get("headers", {}).items():
            self.send_header(name, value)
        self.end_headers()
        for piece in more.get("body", [b"fine"]):
            try:
                self.wfile.write(piece)
            except OSError:
                return
            self.server.stop.wait(more.get("pause", 0))

    do_GET = do_POST = do_PUT = answer  # noqa: N815 - the base class's face

    def log_message(self, *args):
        pass


@pytest.fixture
def web():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.seen, server.answers, server.stop = [], {}, threading.Event()
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.stop.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(("status", "error"), [
    (200, None), (204, None), (400, HttpRefused), (401, HttpRefused), (404, HttpRefused), (410, HttpRefused), (408, HttpFailed), (425, HttpFailed),
    (429, HttpFailed), (500, HttpFailed), (503, HttpFailed), (599, HttpFailed), (304, HttpRefused), (302, HttpRefused),
])
def test_what_a_status_means(web, status, error):
    web.answers["/x"] = {"status": status}
    if error is None:
        assert http(LOCAL, "get", f"{web.url}/x") == status
        return
    with pytest.raises(error, match=rf"^GET {web.url}: {status}"):
        http(LOCAL, "get", f"{web.url}/x?key=hidden")
    assert issubclass(HttpRefused, Exception)
    assert not issubclass(HttpFailed, HttpRefused)


def test_expected_statuses_replace_2xx(web):
    web.answers["/x"] = {"status": 404}
    assert http(LOCAL, "GET", f"{web.url}/x", expect=[404]) == 404
    with pytest.raises(HttpRefused, match="200: not retried"):
        http(LOCAL, "GET", f"{web.url}/y", expect=[404])


def test_what_is_sent(web, run):
    http(LOCAL, "post", f"{web.url}/a?b=c", json={"ü": [1]}, headers={"X-Own": "1", "IDEMPOTENCY-key": "mine"})
    http(LOCAL, "PUT", f"{web.url}/", body="text")
    (verb, path, headers, body), (_, _, second, text) = web.seen
    assert (verb, path, json.loads(body), text) == ("POST", "/a?b=c", {"ü": [1]}, b"text")
    assert (headers["content-type"], headers["x-own"], headers["idempotency-key"]) == ("application/json", "1", "mine")
    assert (headers["host"], second["idempotency-key"]) == (web.url[7:], run)
    assert not {h for h in headers if h.startswith("webhook")}


@pytest.mark.parametrize(("asked", "why"), [
    ({"url": "file:///etc/passwd"}, "no http:// or https:// address"), ({"url": "http://"}, "no http:// or"), ({"url": 7}, "no http:// or"),
    ({"url": "http://u:p@127.0.0.1/"}, "a user and a password"), ({"url": "http://127.0.0.1:99999/"}, "no http:// or"),
    ({"method": "GET /x HTTP/1.1\r\n"}, "no method"), ({"headers": {"Host": "x"}}, "the header Host is made by the task"),
    ({"headers": {"a": "b\r\nc: d"}}, "line break"), ({"headers": {"a b": "c"}}, "'a b' can't be sent"), ({"json": 1, "body": "x"}, "not both"),
    ({"headers": {"webhook-signature": "v1,x"}}, "made by the task"), ({"json": {1: b"x"}}, "not JSON"), ({"timeout": "soon"}, "not a duration"),
    ({"sign": True}, "has given no key"),
])
def test_what_can_not_be_sent_is_refused(asked, why):
    with pytest.raises(HttpRefused, match=why):
        http(LOCAL, **{"method": "GET", "url": "http://127.0.0.1:9/", **asked})


def test_what_fails_on_the_way_is_no_refusal(web):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        with pytest.raises(HttpFailed, match=rf"GET http://127.0.0.1:{port}: .*refused") as e:
            http(LOCAL, "GET", f"http://127.0.0.1:{port}/")
    assert "object at" not in str(e.value)
    with pytest.raises(HttpFailed, match=r"the name nowhere.invalid can't be resolved"):
        http(LOCAL, "GET", "http://nowhere.invalid/")


def test_a_trickle_ends_with_the_timeout_and_a_flood_at_what_is_kept(web, capsysbinary):
    web.answers["/slow"] = {"body": [b"."] * 1_000, "pause": 0.05}
    with pytest.raises(HttpFailed, match=r"time is over|timed out"):
        http(LOCAL, "GET", f"{web.url}/slow", timeout="300ms")
    capsysbinary.readouterr()
    web.answers["/much"] = {"body": [b"x" * 100_000] * 20}
    assert http(LOCAL, "GET", f"{web.url}/much", max_body=20_000) == 200
    assert capsysbinary.readouterr().out == b"x" * 20_000


def test_redirects(web):
    web.answers |= {
        "/a": {"status": 302, "headers": {"Location": "/b?x=1"}}, "/b": {"status": 307, "headers": {"Location": f"{web.url}/c"}},
        "/round": {"status": 307, "headers": {"Location": "/round"}}, "/in": {"status": 302, "headers": {"Location": "http://10.0.0.1/"}},
        "/other": {"status": 307, "headers": {"Location": f"http://127.0.0.2:{web.server_port}/c"}},
    }
    with pytest.raises(HttpRefused, match=f"302, to {web.url}: redirects are not followed unless"):
        http(LOCAL, "POST", f"{web.url}/a", body="x")
    web.seen.clear()
    assert http(LOCAL, "POST", f"{web.url}/a", body="x", redirects=2) == 200
    assert [(verb, path, body) for verb, path, _, body in web.seen] == [("POST", "/a", b"x"), ("GET", "/b?x=1", b""), ("GET", "/c", b"")]
    with pytest.raises(HttpRefused, match="one redirect too many"):
        http(LOCAL, "GET", f"{web.url}/round", redirects=3)
    with pytest.raises(HttpRefused, match=r"10.0.0.1 is no public address; the operator may allow it: --http-allow-net 10.0.0.1"):
        http(LOCAL, "GET", f"{web.url}/in", redirects=3)
    web.seen.clear()
    with pytest.raises(HttpFailed):  # nothing listens on that other address: the point is what is left of the headers
        http(LOCAL, "GET", f"{web.url}/other", redirects=1, headers={"Authorization": "Bearer x", "X-Own": "1"}, timeout="1s")
    from wheelsched.executor.http import Place, Request, _redirect

    request = Request("POST", Place.of("https://a.example/x"), {"authorization": "x", "cookie": "y", "x-own": "1"}, b"z", True, 0)
    _redirect(request, 308, "https://b.example/")
    assert (request.headers, request.sign, request.body) == ({"x-own": "1"}, False, b"z")
    with pytest.raises(HttpRefused, match="from https to http"):
        _redirect(request, 308, "http://b.example/")


def test_errors_say_no_more_of_a_url_than_its_origin(web):
    """Paths and queries are secrets as often as passwords are; what runs raise is shown in listings, events and exports."""
    secret, there = "s3cret", web.url.removeprefix("http://")
    web.answers |= {f"/{secret}/{n}": {"status": n} for n in (404, 429, 500)}
    web.answers |= {f"/{secret}/{name}": {"status": 302, "headers": {"Location": to}} for name, to in {
        "out": f"/{secret}/out?{secret}", "bad": f"ftp://{secret}/", "user": f"http://u:{secret}@{there}/", "worse": f"http://[{secret}/",
        "private": f"http://10.0.0.1/{secret}",
    }.items()}
    web.answers[f"/{secret}/nowhere"] = {"status": 302}
    web.answers[f"/{secret}/slow"] = {"body": [b"."] * 1_000, "pause": 0.05}
    bases = (f"http://{secret}:{secret}@{there}", "http://nowhere.invalid", "http://127.0.0.1:99999", "ftp://x", "", f"https://{there}")
    ends = ("404", "429", "500", "out", "bad", "user", "worse", "private", "nowhere")
    urls = [f"{base}/{secret}/{secret}?{secret}#{secret}" for base in bases] + [f"{web.url}/{secret}/{end}?{secret}#{secret}" for end in ends]
    for url, redirects, more in [*((url, n, {}) for url in urls for n in (0, 2)), (f"{web.url}/{secret}/slow", 0, {"timeout": "300ms"})]:
        with pytest.raises((HttpFailed, HttpRefused)) as e:
            http(LOCAL, "GET", url, redirects=redirects, **more)
        assert secret not in "".join(traceback.format_exception(e.value)), url


# Signatures


def keys(tmp_path, *raw):
    path = tmp_path / "keys"
    path.write_text("# newest first\n" + "".join(f"whsec_{base64.b64encode(x).decode()}\n" for x in raw))
    return str(path)


def verified(secret, headers, body, now_s):
    """As a receiver does it, written from the specification of Standard Webhooks alone."""
    assert abs(now_s - int(headers["webhook-timestamp"])) < 300
    content = b".".join([headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(), body])
    wanted = hmac.new(base64.b64decode(secret.removeprefix("whsec_")), content, hashlib.sha256).digest()
    given = [part.split(",", 1) for part in headers["webhook-signature"].split(" ")]
    return any(version == "v1" and hmac.compare_digest(base64.b64decode(value), wanted) for version, value in given)


def test_signatures_are_what_a_receiver_expects(web, run, tmp_path):
    old, new = b"o" * 24, b"n" * 32
    allowed = Allowed(http=True, http_nets=LOCAL.http_nets, http_secret_file=keys(tmp_path, new, old))
    http(allowed, "POST", web.url, json={"a": 1})
    http(allowed, "POST", web.url, json={"a": 1}, sign=False)
    (_, _, headers, body), (_, _, bare, _) = web.seen
    assert headers["webhook-id"] == run
    for secret in (old, new):  # both, so that receivers can change keys one after the other
        text = "whsec_" + base64.b64encode(secret).decode()
        assert verified(text, headers, body, time.time())
        assert not verified(text, headers, body + b" ", time.time())
    assert not verified("whsec_" + base64.b64encode(b"x" * 24).decode(), headers, body, time.time())
    assert "webhook-signature" not in bare


def test_the_signature_of_the_specification_s_example(tmp_path):
    """The vector that the reference libraries of Standard Webhooks share."""
    from wheelsched.executor.http import signature

    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    wanted = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert signature([key], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}') == wanted


@pytest.mark.parametrize("text", ["", "# none\n", "abc\n", "whsec_!!\n", "whsec_" + base64.b64encode(b"short").decode(), "ä"])
def test_a_file_of_keys_is_checked_at_the_start(tmp_path, text):
    (tmp_path / "keys").write_text(text)
    with pytest.raises(ConfigError, match="http_secret_file"):
        read_secrets(str(tmp_path / "keys"))
    for wrong in (Allowed(http_secret_file=str(tmp_path / "none")), Allowed(http_ca_file=str(tmp_path / "keys")), Allowed(http_nets=("10.0.0.1/8",))):
        with pytest.raises(ConfigError):
            wrong.check()


# Retry-After


@pytest.mark.parametrize(("text", "wanted"), [
    (None, None), ("", None), ("soon", None), ("0", 0.0), (" 120 ", 120.0), ("999999999999999", 86_400.0), ("-5", None), ("1.5", None),
    ("Thu, 01 Jan 2026 00:10:00 GMT", 600.0), ("Wed, 31 Dec 2025 23:00:00 GMT", 0.0), ("Fri, 01 Jan 2027 00:00:00 GMT", 86_400.0),
    ("Thu, 99 Jan 2026 00:10:00 GMT", None),
])
def test_retry_after_in_both_forms(text, wanted):
    from datetime import UTC, datetime

    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert retry_after_s(text, now.timestamp()) == wanted
    assert retry_after_s(format_datetime(now, usegmt=True), now.timestamp()) == 0.0

def test_the_next_attempt_waits_as_the_answer_asks(web):
    web.answers["/busy"] = {"status": 429, "headers": {"Retry-After": "90"}}
    web.answers["/now"] = {"status": 503, "headers": {"Retry-After": "0"}}
    with Simulator("2026-01-01T00:00:00Z", tasks={"http": partial(http, LOCAL), "once": partial(http, LOCAL)}) as sim:
        run = sim.client.enqueue(Http("GET", f"{web.url}/busy"), retry=Retry(attempts=2, backoff="1s"))
        sim.advance("89s")
        assert len(web.seen) == 1, "not before the 90 s are over"
        assert sim.client.run(run.id).attempts[0].error.type == "wheelsched.HttpFailed"
        sim.advance("10s")
        assert (len(web.seen), sim.client.run(run.id).state) == (2, "dead")
        sim.client.enqueue(Http("GET", f"{web.url}/now"), retry=Retry(attempts=2, backoff="10s"))
        sim.advance("9s")
        assert len(web.seen) == 3, "0 s are no reason to leave the backoff out"
        sim.client.enqueue(Call("once", "GET", f"{web.url}/busy"), retry=Retry(attempts=2, not_on=("wheelsched.HttpFailed",)))
        sim.advance("200s")
        assert len(web.seen) == 5, "a rule knows it by its name"


# Where it may connect to


@pytest.mark.parametrize("address", [
    "127.0.0.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.0.1", "169.254.169.254", "100.64.0.1", "100.100.100.200",
    "192.0.0.192", "198.18.0.1", "203.0.113.9", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "168.63.129.16", "192.88.99.1",
    "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "ff0e::1", "2001:db8::1", "2001::1", "100::1",
    "3fff::1", "5f00::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "2002:7f00:1::", "2002:a00:1::1",
    "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::808:808",
])
def test_what_is_not_public_is_refused(address):
    assert not permitted(address, ())


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "2a00:1450:4001::1", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"])
def test_what_is_public_is_allowed(address):
    assert permitted(address, ())


def test_networks_that_the_operator_allows():
    nets = networks(["10.0.0.0/8", "127.0.0.1", "fd00::/8"])
    assert all(permitted(a, nets) for a in ("10.255.0.1", "127.0.0.1", "::ffff:10.0.0.1", "fd12::1", "64:ff9b::a00:1"))
    assert not any(permitted(a, nets) for a in ("127.0.0.2", "192.168.0.1", "fe80::1", "::1"))


@given(st.ip_addresses(v=6))
def test_nothing_outside_of_the_public_range_passes(address):
    if permitted(str(address), ()):
        assert address.is_global or address.sixtofour or address.ipv4_mapped or str(address).startswith("64:ff9b::")


@pytest.mark.parametrize("host", ["2130706433", "0177.0.0.1", "0x7f.1", "127.1", "localhost", "[::ffff:7f00:1]", "[::1]", "0", "127.0.0.1."])
def test_other_spellings_of_this_machine_are_refused(host):
    with pytest.raises((HttpRefused, HttpFailed), match=r"no public address|can't be resolved|no http://") as e:
        http(Allowed(http=True), "GET", f"http://{host}/")
    assert isinstance(e.value, HttpRefused) or "resolved" in str(e.value)


def test_the_address_that_was_checked_is_the_one_connected_to(web, monkeypatch):
    """A name that answers otherwise at every question is asked once."""
    asked = []

    def lookup(host, port, *args, **kwargs):
        if host == "rebind.example":
            asked.append(host)
            address = "127.0.0.1" if len(asked) == 1 else "127.0.0.99"
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]
        return real(host, port, *args, **kwargs)

    real = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    assert http(LOCAL, "GET", f"http://rebind.example:{web.server_port}/x") == 200
    assert asked == ["rebind.example"]
    assert web.seen[0][2]["host"] == f"rebind.example:{web.server_port}"


def test_of_several_addresses_the_permitted_one_that_answers(web, monkeypatch):
    def lookup(host, port, *args, **kwargs):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found] if host == "many.example" else real(
            host, port, *args, **kwargs)

    real, found = socket.getaddrinfo, ["192.168.7.7", "127.0.0.9", "127.0.0.1"]
    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    assert http(LOCAL, "GET", f"http://many.example:{web.server_port}/") == 200
    found[:] = ["192.168.7.7"]
    with pytest.raises(HttpRefused, match=r"many.example is 192.168.7.7, which is no public address"):
        http(LOCAL, "GET", f"http://many.example:{web.server_port}/")


def test_tls_is_verified_by_name(tmp_path, monkeypatch):
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=x",
         "-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "cert"), "-addext", "subjectAltName=DNS:good.example"],
        capture_output=True, check=False,
    )
    if made.returncode:
        pytest.skip("openssl can't make a certificate here")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.seen, server.answers, server.stop = [], {}, threading.Event()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *args: None
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    real = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *a, **k: real("127.0.0.1" if host.endswith(".example") else host, *a, **k))
    try:
        trusting = Allowed(http=True, http_nets=LOCAL.http_nets, http_ca_file=str(tmp_path / "cert"))
        trusting.check()
        assert http(trusting, "GET", f"https://good.example:{server.server_port}/") == 200
        for allowed, host in ((trusting, "bad.example"), (LOCAL, "good.example"), (trusting, "127.0.0.1")):
            with pytest.raises(HttpFailed, match=r"certificate verify failed|doesn't match"):
                http(allowed, "GET", f"https://{host}:{server.server_port}/")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_without_urllib3_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "urllib3", None)
    with pytest.raises(HttpRefused, match=r"pip install urllib3"):
        http(LOCAL, "GET", "http://127.0.0.1/")


def test_the_noun_checks_what_it_can():
    assert Http("GET", "http://x/").kwargs == {"json": None, "body": None, "headers": {}}
    call = Http("GET", "http://x/", timeout="90s", expect=(200, 404), redirects=3, sign=True, max_body=10)
    assert {k: call.kwargs[k] for k in ("timeout", "expect", "redirects", "sign", "max_body")} == {
        "timeout": "1m30s", "expect": [200, 404], "redirects": 3, "sign": True, "max_body": 10,
    }
    for wrong in ({"expect": 200}, {"expect": [7]}, {"redirects": 11}, {"max_body": -1}, {"redirects": "1"}):
        with pytest.raises(PayloadError):
            Http("GET", "http://x/", **wrong)
    with pytest.raises(InvalidArgumentError):
        Http("GET", "http://x/", timeout="soon")
