"""A client's membership in a run: it joins, renews its lease, and rejoins after the link or the replay was lost.

A state machine without sockets and clock: it returns instructions, and `now` is passed in.
"""

from __future__ import annotations

import logging
import math

from dpsr_apex import timeouts
from dpsr_apex.protocol.client_instructions import HeadLost, LinkInstruction, LookUpHead, Reconnect, Rejected, Send
from dpsr_apex.wire.messages import Alive, Goodbye, Heartbeat, Join, Leave, Message, Refused, Stranger, Welcome

log = logging.getLogger(__name__)

MembershipMessage = Welcome | Alive | Stranger | Refused | Goodbye
"""Messages from the replay that concern only the membership, except Welcome, which resets the client too."""


class Membership:
    """Membership of one process. Call `tick` a few times a second, and `handle` with every message from the replay."""

    def __init__(self, request: Join, lease: float, now: float) -> None:
        self.welcome: Welcome | None = None  # None while it is not a member
        self.goodbye: Goodbye | None = None
        self.t = 0  # the replay's clock, from its last message
        self.actors = 1  # in the whole run, planned or joined
        self.learner = ""  # endpoint of the learner's weights server; empty without a learner
        self.sent = 0  # actors: transitions sent so far
        self.sequence = request.sequence  # actors: the first chunk that can still be sent
        self.acknowledged = request.acknowledged  # actors: transitions in the chunks before it
        self._request = request
        self._lease = lease
        self._last_word = now  # when the last message arrived
        self._silent_since = now  # when the last message arrived, or the socket was replaced
        self._missed_since: float | None = None  # since when the replay is silent although this process listens
        self._looked_up_at = now
        self._sent_join_at = self._sent_heartbeat_at = -math.inf

    def heard(self, now: float) -> None:
        """Note that the replay is sending a large message."""
        self._last_word = self._silent_since = now
        self._missed_since = None

    def handle(self, message: Message, now: float) -> list[LinkInstruction]:
        """Handle any message from the replay."""
        self.heard(now)
        match message:
            case Welcome():
                self.welcome = message
                self._learn_of(message)
            case Alive():
                self._learn_of(message)
            case Stranger() if self.welcome is not None:
                log.warning("this process is no longer a member of the run; rejoining")
                self.rejoin()
            case Goodbye():
                self.goodbye = message
            case Refused():
                return [Rejected(message.reason)]
        return []

    def tick(self, now: float) -> list[LinkInstruction]:
        """Join, send a heartbeat or reconnect, as needed.

        A process that was suspended itself looks for the replay before it gives up.
        """
        is_silent = now - self._silent_since >= timeouts.HEAD_SILENCE
        if is_silent and self._missed_since is None:
            self._missed_since = now - timeouts.HEAD_SILENCE
        if self._missed_since is not None and now - self._missed_since > timeouts.HEAD_LOST:
            return [HeadLost(now - self._last_word)]
        if is_silent and now - self._looked_up_at >= timeouts.HEARTBEAT:
            self._looked_up_at = now
            return [LookUpHead()]  # everything else follows from its result
        return self._keep(now)

    def head_looked_up(self, moved: bool, now: float) -> list[LinkInstruction]:
        """Continue after a LookUpHead; `moved`: the head has a new address, or was restarted."""
        return (self._reconnect(now) if moved else []) + self._keep(now)

    def undelivered(self, message: Message) -> None:
        """Resend a Join or Heartbeat at the next tick, because the socket did not accept it."""
        match message:
            case Join():
                self._sent_join_at = -math.inf
            case Heartbeat():
                self._sent_heartbeat_at = -math.inf

    def rejoin(self) -> None:
        """Join again, to receive another Welcome and what follows it."""
        self.welcome = None
        self._sent_join_at = -math.inf

    def leave(self) -> list[LinkInstruction]:
        """Return the last message of a member."""
        return [] if self.welcome is None else [Send(Leave(self.sent))]

    def _keep(self, now: float) -> list[LinkInstruction]:
        instructions = self._reconnect(now) if now - self._silent_since > self._lease else []
        if self.welcome is None:
            if now - self._sent_join_at >= timeouts.HEARTBEAT:
                self._sent_join_at = now
                request = self._request._replace(sequence=self.sequence, acknowledged=self.acknowledged)
                instructions.append(Send(request))
        elif now - self._sent_heartbeat_at >= timeouts.HEARTBEAT:
            self._sent_heartbeat_at = now
            instructions.append(Send(Heartbeat(self.sent)))
        return instructions

    def _reconnect(self, now: float) -> list[LinkInstruction]:
        self._silent_since = now
        self.rejoin()
        return [Reconnect(now - self._last_word)]

    def _learn_of(self, message: Welcome | Alive) -> None:
        self.t, self.actors = message.t, message.actors
        self.learner = message.weights_endpoint
