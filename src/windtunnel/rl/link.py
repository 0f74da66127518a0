"""A rank's engines that receive weights directly: all together after an update, one alone when it was started again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from .engine import Receipt
from .engine_process import RemoteEngine
from .errors import EngineFailed
from .send import Held, WeightSender
from .sync import Offer
from .transfer import Invitation

Send = Callable[[WeightSender, Held, Callable[[], None]], None]
"""Sends the version that was offered to whoever receives, and has it held, whole, whatever becomes of them; gets what to check
while it waits. Raises EngineFailed."""


class Link:
    """The way of weights to a rank's engines, which are processes that come and go.

    Args:
        sender: to them.
        workers: of each.
    """

    def __init__(self, sender: WeightSender, workers: int) -> None:
        self._sender, self._workers, self._held = sender, workers, Held()
        self._joined: list[RemoteEngine] = []
        self._alone = threading.Lock()

    def give(self, offer: Offer, engines: Sequence[RemoteEngine], send: Send) -> list[Receipt | Exception]:
        """Have engines receive a version together; each one's receipt, or why there is none.

        Args:
            offer: what will be sent.
            engines: that live; one that has died has an error here.
            send: called once, whatever happens: other ranks may send at the same time.
        """
        with ThreadPoolExecutor(max(1, len(engines))) as pool:
            ready = list(pool.map(lambda engine: _tried(lambda: self._prepare(offer, engine)), engines))
            # All or none: a group has a fixed number of members, and the others would wait in it for the one that is missing.
            failed = any(isinstance(one, Exception) for one in ready)
            invitations = self._invited([] if failed else engines)
            receiving = [
                pool.submit(_received, offer, engine, invitation)
                for engine, invitation in zip(engines, invitations, strict=False)
            ]
            try:
                if invitations and invitations[0] is not None:
                    self._sender.connect()
                # Also where nobody receives: other ranks are in the middle of gathering, and the version must be held.
                send(self._sender, self._held, lambda: _check(receiving))
            except EngineFailed as error:
                failed, why = True, error
            else:
                why = EngineFailed("another engine could not begin to receive")
            found: list[Receipt | Exception] = [_tried(future.result) for future in receiving] or [
                one if isinstance(one, Exception) else why for one in ready
            ]
        # A group in which one has failed is of no more use: the next version is sent in a new one.
        whole = not failed and all(isinstance(one, Receipt) for one in found)
        # Who joined stays joined: a group is formed once, not for every version.
        self._joined = list(engines) if whole else []
        return found

    def again(self, offer: Offer, engine: RemoteEngine) -> Receipt:
        """Have one engine receive the version that was sent last, from this host's memory."""
        engine.prepare(offer.config, offer.tokens, offer.base)
        with self._alone, ThreadPoolExecutor(1) as pool:
            assert self._held.version == offer.version
            # A group for the one that is alone: the old one has a member that died, and cannot be joined.
            self._joined = []
            (invitation,) = self._sender.invite([self._workers])
            receiving = pool.submit(_received, offer, engine, invitation)
            try:
                self._sender.connect()
                self._sender.send(offer.version, self._held.buckets(), lambda: _check([receiving]))
            except EngineFailed:
                receiving.result()
                raise
            return receiving.result()

    def _prepare(self, offer: Offer, engine: RemoteEngine) -> None:
        if engine not in self._joined:
            engine.prepare(offer.config, offer.tokens, offer.base)

    def _invited(self, engines: Sequence[RemoteEngine]) -> Sequence[Invitation | None]:
        """Return what each engine is to join; None: it is in the group that there is."""
        if engines and list(engines) == self._joined:
            return [None] * len(engines)
        return self._sender.invite([self._workers] * len(engines))


def _received(offer: Offer, engine: RemoteEngine, invitation: Invitation | None) -> Receipt:
    if invitation is not None:
        engine.join(invitation)
    return engine.receive(offer.version, offer.config, offer.canary, offer.adapter)


def _check(receiving: Sequence[Future[Receipt]]) -> None:
    """Raise EngineFailed where one that receives has failed."""
    for future in receiving:
        if future.done() and (error := future.exception()) is not None:
            raise EngineFailed(str(error))


def _tried(work: Callable[[], Any]) -> Any:
    """Return what it gives, or the error that an engine may raise."""
    try:
        return work()
    except Exception as error:
        return error
