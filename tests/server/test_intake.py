"""Who is served when: what a turn takes from whom, by cost and not by time, with real connections and no server."""

import socket

import pytest

from tests.rigs.engine import Bench
from wheelsched import Call, Job, Manual
from wheelsched.engine.costs import TURN_US, cost, verb_of
from wheelsched.model.errors import InvalidArgumentError
from wheelsched.model.globs import glob, names_a_turn
from wheelsched.model.nouns import GLOB_MAX, GLOB_STARS_MAX, ROLES
from wheelsched.protocol.frames import FRAME_MAX, encode_frame, encode_request
from wheelsched.protocol.verbs import WORKERS
from wheelsched.reads import reads
from wheelsched.reads.events import Wanted
from wheelsched.reads.forecast_lines import Census
from wheelsched.server.connections import OUT_PAUSE, PENDING_BYTES_MAX, PENDING_MAX, READ_BYTES, Connection
from wheelsched.server.intake import Intake
from wheelsched.state import readable
from wheelsched.state.readable import LOOKED_AT_MAX, TOLD_MAX
from wheelsched.verbs import dead

PAGE = {"match": None, "state": None, "after": None, "limit": 1_000}
DEAREST_US = 20_000  # a frame of 1 MiB that is all jobs


class Peer:
    """One end of a connection; the other is the server's."""

    def __init__(self, intake, number, *, trusted=False):
        self.sock, other = socket.socketpair()
        self.sock.setblocking(False)
        self.intake = intake
        self.server = Connection(number, other, 0, frozenset(ROLES), trusted=trusted)

    def sends(self, *requests):
        """All of it, read by the server as far as it reads."""
        self.sends_raw(b"".join(encode_request(1 + i, verb, args) for i, (verb, args) in enumerate(requests)))

    def sends_raw(self, data):
        while data:
            try:
                data = data[self.sock.send(data) :]
            except BlockingIOError:
                if not self.server.readable:
                    break
            if self.server.readable:
                assert self.server.read(0)
        self.intake.add(self.server)

    def close(self):
        self.sock.close()
        self.server.close()


@pytest.fixture
def intake():
    return Intake()


@pytest.fixture
def peer(intake):
    peers = []

    def make(**options):
        peers.append(Peer(intake, 10 + len(peers), **options))
        return peers[-1]

    yield make
    for one in peers:
        one.close()


def turn(intake):
    """(connection, verb) of what one turn takes, in its order."""
    urgent = [(c.number, r.verb) for c, r in intake.urgent()]
    return urgent + [(c.number, r.verb) for c, r in intake.others()]


def test_t3_a_turn_takes_what_it_has_time_for_and_everybody_has_his_turn(intake, peer):
    strangers = [peer() for _ in range(12)]
    for stranger in strangers:
        stranger.sends(*[("jobs", PAGE)] * 900)
    served = dict.fromkeys((s.server.number for s in strangers), 0)
    for _ in range(60):
        for number, _ in turn(intake):
            served[number] += 1
        assert intake.spent_us < TURN_US + DEAREST_US
    assert max(served.values()) - min(served.values()) <= 1
    somebody = peer()
    somebody.sends(("put", {"name": "x"}))
    assert (somebody.server.number, "put") in turn(intake)  # though 12 others have 900 requests each before it


def test_t3_the_dear_pay_for_what_they_ask_and_the_cheap_are_not_behind_them(intake, peer):
    dear, cheap = peer(), peer()
    dear.sends(*[("put_many", {"names": ["x"] * 1_000})] * 20)
    cheap.sends(*[("get", {"name": "x"})] * 300)
    taken = [number for _ in range(20) for number, _ in turn(intake)]
    assert taken.count(dear.server.number) <= 8
    assert taken.count(cheap.server.number) == 300


def test_t3_one_command_is_taken_however_dear_it_is(intake, peer):
    one = peer()
    one.sends(("put_many", {"names": ["x"] * 10_000}), ("put_many", {"names": ["x"] * 10_000}))
    assert turn(intake) == [(10, "put_many")]
    assert turn(intake) == [(10, "put_many")]
    assert not intake
    assert turn(intake) == []


@pytest.mark.parametrize("verb", sorted(WORKERS))
def test_t3_what_keeps_leases_alive_passes_commands_of_its_own_connection(intake, peer, verb):
    one = peer()
    one.sends(*[("jobs", PAGE)] * 500, (verb, {}), *[("jobs", PAGE)] * 100)
    assert turn(intake)[0] == (10, verb)


def test_t3_a_flood_of_urgent_requests_is_one_connections_and_bounded(intake, peer):
    one, pool = peer(), peer(trusted=True)
    hello = ("hello", {"version": 1, "role": "worker", "name": "x", "tasks": {f"t{i}": {} for i in range(2_000)}})
    one.sends(*[hello] * 20)
    pool.sends(*[("finish", {"token": bytes(8 * 1_000)})] * 20)
    taken = turn(intake)
    assert taken.count((10, "hello")) == 1
    assert taken.count((11, "finish")) == 20  # those of the server's own workers all


def test_t3_no_more_is_kept_of_a_connection_than_its_bound(intake, peer):
    many, large = peer(), peer()
    many.sends_raw(encode_request(1, "stats", {}) * 50_000)
    assert len(many.server.others) == PENDING_MAX
    assert not many.server.readable
    big = encode_request(1, "enqueue", {"payload": bytes(FRAME_MAX - 200)})
    large.sends_raw(big * 10)
    assert not large.server.readable
    assert sum(map(len, large.server.others)) < PENDING_BYTES_MAX + FRAME_MAX + READ_BYTES
    for _ in range(200):  # what was read and had no room comes after
        turn(intake)
        assert many.server.refill(0)
        intake.add(many.server)
    assert len(many.server.others) > 0


def test_t3_who_does_not_read_is_waited_for(intake, peer):
    one = peer()
    one.sends(("jobs", PAGE), ("jobs", PAGE))
    one.server.send(bytes(8 * OUT_PAUSE))
    assert one.server.clogged
    assert not intake
    assert turn(intake) == []
    while one.server.writable_wanted:
        one.sock.recv(1024 * 1024)
        one.server.flush()
    assert intake
    assert turn(intake)


def test_t3_rubbish_ends_its_connection_in_its_turn(intake, peer):
    one = peer()
    one.sends_raw(encode_request(1, "get", {}) + encode_frame(["no", "request"]) + encode_request(2, "get", {}))
    assert turn(intake) == [(10, "get")]
    assert one.server.closing
    assert not one.server.waiting


def test_t3_completions_of_who_went_count(peer):
    one = peer()
    one.sends(("jobs", PAGE), ("finish", {"a": 1}), ("heartbeat", {}), ("finish", {"a": 2}))
    assert [r.args for r in one.server.left()] == [{"a": 1}, {"a": 2}]
    assert not one.server.waiting


@pytest.mark.parametrize("number", [1, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**63 - 1])
@pytest.mark.parametrize("verb", ["get", "x" * 31, "x" * 32, "x" * 255, ""])
def test_t3_the_verb_is_told_without_decoding(number, verb):
    assert verb_of(encode_request(number, verb, {})[4:]) == verb


def test_t3_the_verb_of_rubbish_is_none():
    body = encode_request(2**40, "heartbeat", {})[4:]
    for n in range(len(body)):
        assert verb_of(body[:n]) in ("", *("heartbeat"[:k] for k in range(10)))
        assert isinstance(verb_of(bytes([0x93]) + body[n:]), str)
    assert verb_of(b"\x93\xc1\xc1\xc1\xc1") == ""
    assert verb_of(b"\x93\x01\xc4\x03get") == ""  # a bin


def test_t3_costs_of_any_arguments_are_numbers():
    for verb in ("jobs", "runs", "put_many", "group", "next", "hello", "finish", "redrive", "no such"):
        for value in (None, -1, 10**30, "x", b"x", [], {}, True, 1.5):
            args = dict.fromkeys(("limit", "names", "payload", "members", "n", "tasks", "token", "ids"), value)
            assert 1 <= cost(verb, args, 10) <= 1_000_000, (verb, value)


# Patterns


def test_t3_patterns_have_bounds():
    assert glob("a*b?[cd]")("axxb1c")
    assert not glob("a*b?[cd]")("axxb1e")
    assert glob("*" * GLOB_MAX)("x")  # one star
    glob("a*" * GLOB_STARS_MAX)
    for bad in ("a*" * (GLOB_STARS_MAX + 1), "*a" * 400_000, "x" * (GLOB_MAX + 1), None, 5, b"*"):
        with pytest.raises(InvalidArgumentError):
            glob(bad)
    assert names_a_turn(None, 4_000) == names_a_turn("a/*", 4_000) == 4_000
    assert 1 <= names_a_turn("*" + "a" * 300, 4_000) < 100


LONG = ("*a" * 50, "x" * 401)
ASKED = [
    *[("jobs", {"match": p}) for p in LONG], *[("runs", {"job": p}) for p in LONG], *[("dead", {"match": p}) for p in LONG],
    ("dead", {"error": "*a" * 50}), ("runs", {"task": "x" * 401}), ("runs", {"queue": "x" * 401}), ("runs", {"namespace": "x" * 401}),
    *[("cancel_many", {"rid": bytes(16), "match": p}) for p in LONG], *[("redrive", {"rid": bytes(16), "match": p}) for p in LONG],
    *[("discard", {"rid": bytes(16), "match": p}) for p in LONG],
    *[("events", {"match": p}) for p in LONG], ("events", {"kinds": ["run.*", "*r" * 50]}), ("events", {"kinds": ["x" * 500]}),
    *[("forecast", {"queue": p}) for p in LONG], *[("apply", {"rid": bytes(16), "batch": 1, "jobs": 0, "prune": p}) for p in LONG],
]


def ask(b, verb, args):
    """As the server asks."""
    readers = {"jobs": reads.jobs_page, "dead": dead.page, "runs": lambda _, args: readable.RunFilter(args), "events": lambda _, args: Wanted(args),
               "forecast": lambda engine, args: Census(engine, None, args["queue"])}
    return readers[verb](b.engine, args) if verb in readers else b.call(50, (verb, args))


def test_t3_every_verb_that_takes_a_pattern_bounds_it():
    with Bench("2026-03-02T00:00:00Z") as b:
        for verb, args in ASKED:
            with pytest.raises(InvalidArgumentError, match=r"at most|1 to"):
                ask(b, verb, args)


# Pages


def test_t3_a_page_of_jobs_looks_at_a_bound_and_tells_a_bound(monkeypatch):
    with Bench("2026-03-02T00:00:00Z") as b:
        b.client.put_many(Job(f"a/{i:05}", Call("t", i), Manual()) for i in range(LOOKED_AT_MAX + 1_000))
        page = ask(b, "jobs", {"limit": 1_000})
        assert len(page["columns"]["name"]) == TOLD_MAX
        looked = []
        table = b.engine.state.jobs
        real = type(table).gather

        class Watched:
            def __getattr__(self, name):
                return getattr(table, name)

            def gather(self, rows):
                looked.append(len(rows))
                return real(table, rows)

        monkeypatch.setattr(b.engine.state, "jobs", Watched())
        for match, most in (("z/*", LOOKED_AT_MAX), ("*" + "z" * 40, 200)):
            looked.clear()
            page = ask(b, "jobs", {"match": match})
            assert page["columns"] == {}
            assert page["after"] is not None
            assert 0 < sum(looked) <= most
        monkeypatch.undo()
        assert [j.name for j in b.client.jobs(match="a/*")] == [f"a/{i:05}" for i in range(LOOKED_AT_MAX + 1_000)]
        assert [j.name for j in b.client.jobs(match="*99")] == [f"a/{i:05}" for i in range(99, LOOKED_AT_MAX + 1_000, 100)]
