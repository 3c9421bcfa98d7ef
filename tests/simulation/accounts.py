"""Where every transition of a run is: in the replay, replaced there, refused, or lost with a crash of the replay."""

from __future__ import annotations

from tests.simulation.hosts import RECYCLED, ActorHost, ReplayHost, Row, Saved


class Accounts:
    """Accounts for all actor processes of a run, over all processes of its replay."""

    def __init__(self, total_steps: int) -> None:
        self.actors: list[ActorHost] = []
        self.total_steps = self._planned_steps = total_steps  # of the run, which may be extended
        self._rolled_back: set[Row] = set()  # settled by a replay that crashed, and not in the checkpoint after it

    def rolled_back(self, before: list[Row], after: list[Row]) -> None:
        """Take note of what a replay that crashed had settled, and of what the one after it has."""
        self._rolled_back |= set(before) - set(after)

    def count_rolled_back(self) -> int:
        """How many transitions a replay had settled that crashed before its next checkpoint."""
        return len(self._rolled_back)

    @property
    def acknowledged(self) -> set[Row]:
        """What no actor keeps any more."""
        return {row for actor in self.actors for row in actor.acknowledged}

    def lost(self, replay: ReplayHost) -> set[Row]:
        """What no actor keeps any more, since a replay that crashed had acknowledged it."""
        return (self._rolled_back & self.acknowledged) - set(replay.settled)

    def check(self, replay: ReplayHost) -> None:
        """Assert that no transition is missing, and none is there twice."""
        self._check_counters(replay)
        self._check_store(replay)
        inserted, settled, lost = replay.replay.inserted, set(replay.settled), self.lost(replay)
        assert len(inserted) == len(set(inserted)), f"inserted twice: {_twice(inserted)}"
        assert len(replay.settled) == len(settled), f"settled twice: {_twice(replay.settled)}"
        refused = settled - set(inserted)
        assert len(refused) == replay.service.traffic.refused
        assert not refused or replay.service.t >= self._planned_steps, "refused before the last step"
        accounted = settled | lost
        streams = {(name, incarnation): number for name, incarnation, number, *_ in replay.service.flow.inbox.save()}
        for actor in self.actors:
            serials = [serial for owner, serial in inserted if owner == actor.owner]
            assert serials == sorted(serials), f"the transitions of {actor.key} are not in order"
            unaccounted = set(actor.acknowledged) - accounted
            assert not unaccounted, f"acknowledged to {actor.key} and nowhere: {sorted(unaccounted)}"
            skipped = set(actor.rows_before(streams.get(actor.key, 0))) - accounted
            assert not skipped, f"of {actor.key} the replay has left out {sorted(skipped)}"
        self._check_lost(replay, settled)

    def check_saved(self, saved: Saved | None) -> None:
        """Assert that everything that was acknowledged is in this checkpoint, the last one of a run."""
        acknowledged = {row for actor in self.actors for row in actor.acknowledged}
        missing = acknowledged - self._rolled_back - set(saved.settled if saved else [])
        assert not missing, f"acknowledged, and not in the last checkpoint: {sorted(missing)}"

    def _check_counters(self, replay: ReplayHost) -> None:
        service = replay.service
        traffic, inbox = service.traffic, service.flow.inbox
        assert traffic.received == traffic.inserted + traffic.refused + inbox.queued_transitions
        assert traffic.inserted == len(replay.replay.inserted)
        assert traffic.inserted + replay.replay.counters.chain_steps_stored == service.t <= self.total_steps
        reported = {(name, incarnation): sent for name, incarnation, _, sent, _ in inbox.save()}
        assert traffic.sent == sum(reported.values())
        for actor in self.actors:
            assert reported.get(actor.key, 0) <= actor.client.outbox.sent
        assert traffic.received <= sum(actor.client.outbox.sent for actor in self.actors)
        assert 0 <= service.flow.credits <= service.config.system.prefetch

    def _check_lost(self, replay: ReplayHost, settled: set[Row]) -> None:
        """Every transition that was sent is in one place, and what is lost is counted exactly.

        Lost are those that a replay which crashed had acknowledged, if it is known that they were sent, and those that
        actors which have ended had sent.
        """
        service = replay.service
        actors, members = {actor.key: actor for actor in self.actors}, {session.key for session in service.sessions}
        rolled_back = in_flight = ended = 0
        for name, incarnation, number, sent, done in service.flow.inbox.save():
            actor = actors[name, incarnation]
            passed = set(actor.rows_before(number))
            assert done == len(passed), f"{done} transitions of {actor.key} are settled or lost, not {len(passed)}"
            rolled_back += len(passed - settled)
            stream = service.flow.inbox.stream(actor.key)
            if actor.key in members:
                in_flight += sent - done
            else:
                ended += sent - done - stream.queued
                in_flight += stream.queued
        traffic = service.traffic
        assert traffic.lost == rolled_back + ended, f"{traffic.lost} are counted as lost, not {rolled_back} + {ended}"
        assert traffic.sent == traffic.inserted + traffic.refused + traffic.lost + in_flight

    def _check_store(self, replay: ReplayHost) -> None:
        """What is stored was inserted, and as many were replaced or quarantined as are not there any more."""
        core = replay.replay
        assert core.check_valid() == (True, "")
        stored = core.read(core.identities)
        owners = stored.a_tm1.tolist()
        new = [row for row in zip(owners, map(int, stored.r_t.tolist()), strict=True) if row[0] != RECYCLED]
        assert len(new) == len(set(new)), f"stored twice: {_twice(new)}"
        assert set(new) <= set(core.inserted)
        later = [stack for stack in stored.s_tm1 if stack[0].startswith(b"chain ")]
        assert len(later) == len(set(later)), "a step of a chain is stored twice"
        gone_new = len(core.inserted) - len(core.rounds) - len(new)
        recycled = core.counters.recycled + core.counters.chain_steps_stored
        gone_recycled = recycled - owners.count(RECYCLED)
        assert gone_new >= 0
        assert gone_recycled >= 0
        assert core.counters.replaced + core.counters.quarantined == gone_new + gone_recycled


def _twice(rows: list[Row]) -> list[Row]:
    return sorted({row for row in rows if rows.count(row) > 1})
