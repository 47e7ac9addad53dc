"""A simulator in the place of a server: clients of code under test reach it, and nothing else. For `testing_plugin` and `async_client`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ..client.async_client import AsyncClient, AsyncRun
from ..client.async_transport import AsyncTransport
from ..client.client import Client
from ..client.places import is_known
from ..client.transport import Transport
from ..client.verbs import Verbs, unfinished
from ..client.verbs_time import TimeVerbs
from ..model.errors import FailedPreconditionError, WheelschedError
from ..model.nouns import US

if TYPE_CHECKING:
    import pytest

    from ..client.client import BaseClient
    from ..client.requests import Ask
    from ..model.payloads import Exts

__all__ = ["SimAsyncClient", "redirect"]


class Host(Protocol):
    """The simulator, as far as clients of code under test need it."""

    @property
    def client(self) -> BaseClient:
        """Its own client, that lets virtual time pass."""

    @property
    def now_us(self) -> int:
        """The virtual wall clock."""

    @property
    def exts(self) -> Exts:
        """Users' types in payloads."""

    @property
    def idle(self) -> bool:
        """Whether nothing more will happen."""


def answer(sim: Host, ask: Ask[Any]) -> Any:
    """The simulator's answer to a client's question; what waits for something lets virtual time pass. The errors of the server.

    RunTimeout when a run is waited for that will not end, since nothing more happens.
    """
    if ask.verb == "wait":
        run = sim.client.wait_run(ask.args["id"], ask.args["timeout_us"] / US)
        if not run.final and sim.idle:
            raise unfinished(run, "and nothing more happens")
        return ask.decode(run._raw)  # noqa: SLF001 - as the server would answer
    if ask.verb == "events":
        return sim.client._event_page(ask, (ask.args.get("wait_us") or 0) / US)  # noqa: SLF001 - the same face
    return sim.client._do(ask, None)  # noqa: SLF001 - the same face


class _Settled:
    """A question that was answered when it was asked: begun questions keep their order."""

    def __init__(self, sim: Host, ask: Ask[Any]) -> None:
        self._value: Any = None
        self._error: WheelschedError | None = None
        try:
            self._value = answer(sim, ask)
        except WheelschedError as e:
            self._error = e

    def result(self) -> Any:
        """The answer, or its error."""
        if self._error is not None:
            raise self._error
        return self._value


class _AsyncTransport:
    """What an AsyncClient asks of its transport."""

    def __init__(self, sim: Host) -> None:
        self._sim = sim
        self._closed = False
        self.path = "simulator"
        self.server: dict[str, Any] = {}

    def begin(self, ask: Ask[Any]) -> _Settled:
        """As AsyncTransport.begin."""
        if self._closed:
            raise FailedPreconditionError("this client is closed; make a new one")
        return _Settled(self._sim, ask)

    async def sent(self, opened: _Settled, seconds: float | None) -> None:
        """It is, as soon as it is begun."""

    async def finish(self, opened: _Settled, seconds: float | None) -> Any:  # noqa: ARG002 - virtual time has no deadline
        """The answer. The server's error."""
        return opened.result()

    def drop(self, opened: _Settled) -> None:
        """Nobody waits for it any more."""

    async def close(self) -> None:
        """Later calls are refused."""
        self._closed = True


class SimAsyncClient(AsyncClient):
    """The face of AsyncClient on a simulator."""

    def __init__(self, sim: Host) -> None:
        super().__init__("simulator")
        self.exts = sim.exts
        self._verbs: Verbs[AsyncRun] = Verbs(lambda raw: AsyncRun(raw, self), sim.exts)
        self._times: TimeVerbs[AsyncRun] = TimeVerbs(self._verbs.read_run)
        self._sim = sim
        self._transport = _AsyncTransport(sim)  # type: ignore[assignment]  # the part of its face that a client uses

    def _now_us(self) -> int:
        return self._sim.now_us


def redirect(sim: Host, patch: pytest.MonkeyPatch) -> None:
    """Have every Client and AsyncClient without a path of its own, also one made before, ask the simulator; others are refused."""

    def begin(self: Transport | AsyncTransport, ask: Ask[Any]) -> _Settled:
        if not is_known(self.path):
            raise FailedPreconditionError(
                f"this test has a simulator, and a client in it wants the server at {self.path}: nothing was sent. Leave the path out, and"
                " it is the simulator's client; @pytest.mark.wheelsched(connections=True) allows real connections"
            )
        if self._closed:
            raise FailedPreconditionError("this client is closed; make a new one")
        return _Settled(sim, ask)

    def finish(_self: Transport, opened: _Settled, _timeout: float | None) -> Any:
        return opened.result()

    async def finish_async(_self: AsyncTransport, opened: _Settled, _timeout: float | None) -> Any:
        return opened.result()

    async def sent(_self: AsyncTransport, _opened: _Settled, _timeout: float | None) -> None:
        pass

    def nothing(_self: Transport | AsyncTransport, *_: Any) -> None:
        pass

    for client in (Client, AsyncClient):
        patch.setattr(client, "_now_us", lambda _: sim.now_us)
    for name, what in {"begin": begin, "finish": finish, "flush": nothing, "drop": nothing}.items():
        patch.setattr(Transport, name, what)
    for name, asynchronous in {"begin": begin, "finish": finish_async, "sent": sent, "drop": nothing}.items():
        patch.setattr(AsyncTransport, name, asynchronous)
