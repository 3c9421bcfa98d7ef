"""Recovery of a replay service: the events in the journal of an earlier process are applied again, in their order.

They change the state through the same code as in that process, so that the state becomes identical, random generator
included. Members are not restored: they join again.
"""

from __future__ import annotations

from dpsr_apex.protocol.events import (
    Advanced,
    Counted,
    Described,
    Event,
    Evicted,
    Expired,
    Late,
    LearnerSeated,
    Logged,
    Reported,
    Sampled,
    Sender,
    Struck,
)
from dpsr_apex.protocol.replay_service import ReplayService
from dpsr_apex.wire.messages import Chunk, Learning, Priorities, Recycled, SetRate


class Recovery:
    """Applies events to a service that has the state of the newest checkpoint, or is new."""

    def __init__(self, service: ReplayService) -> None:
        self.service = service
        self._sender = Sender("", 0)

    def apply(self, event: Event) -> None:
        """Change the state as this event did."""
        service, flow, replay = self.service, self.service.flow, self.service.replay
        match event:
            case Sender():
                self._sender = event
            case Chunk():
                flow.insert(flow.inbox.settle_again(self._sender, event), event)
            case Sampled(batches):
                service.rate.batches += batches
                for _ in range(batches):
                    replay.draw(flow.batch_size)
            case Priorities():
                replay.update_priorities(event.identities, event.td_errors)
            case Recycled():
                flow.answer(event)
            case Late(chains, steps):
                replay.count_late(chains, steps)
            case Expired(number):
                replay.expire(number)
            case Evicted(identities, reason):
                flow.evict(identities, reason)
            case Struck(identities, reason):
                flow.strike(identities, reason)
            case SetRate(steps_per_update):
                service.rate.change(service.t, steps_per_update)
            case LearnerSeated(incarnation, updates):
                service.learner.seated(incarnation)
                service.rate.batches = updates
            case Learning():
                service.learner.take_report(event)
            case Logged():
                self._begin_row()
            case Described(environment, layout):
                service.sessions.environment, service.sessions.layout = environment, layout
            case Counted(counts):
                service.traffic.load(counts)
            case Reported(name, incarnation, sent):
                flow.inbox.begin((name, incarnation), 0, 0)
                flow.inbox.report_sent((name, incarnation), sent)
            case Advanced(name, incarnation, sequence, acknowledged):
                flow.inbox.begin((name, incarnation), sequence, acknowledged)

    def _begin_row(self) -> None:
        """Forget what belongs to the row of metrics that was written."""
        self.service.drain_episodes()
        self.service.learner.drain_reports()
        self.service.flow.policy_ages.drain()

    def finish(self) -> None:
        """Bring the state to rest: nobody is a member, and everything that was not stored will be sent again."""
        flow = self.service.flow
        flow.inbox.end_all()
        flow.traffic.load(flow.traffic.at_rest())
