"""What a replay has shown to others, and whether the process after it still stands by it."""

from __future__ import annotations

from typing import NamedTuple

from dpsr_apex.record.journal.encoding import digest_of
from dpsr_apex.replay.transitions import unpacked
from dpsr_apex.wire.messages import Acknowledged, Alive, Batch, Message, Recycle, Stats, Welcome
from tests.simulation.accounts import Accounts
from tests.simulation.hosts import ReplayHost, Row
from tests.simulation.storage import Storage


class Died(NamedTuple):
    """A replay process when it ended."""

    settled: list[Row]
    digest: str | None  # of its state; None if it ended in the middle of a change


class Promise:
    """What was acknowledged is kept, the clock never goes back, and an identity never names another transition.

    Only a run without a journal may break this, and one whose journal is not synced, after a power cut.
    """

    def __init__(self, accounts: Accounts, storage: Storage) -> None:
        self.recoveries = 0  # that were compared with the process before
        self._accounts = accounts
        self._storage = storage
        self._t = 0  # greatest clock that was shown
        self._identities: dict[int, object] = {}  # what each of those that were shown names
        self._died: Died | None = None
        self._is_broken = False  # whether it may be broken since the last recovery

    def sent(self, message: Message) -> None:
        """Note what a message of the replay shows."""
        if isinstance(message, Acknowledged | Alive | Batch | Stats | Welcome):
            self._t = max(self._t, message.t)
        if isinstance(message, Batch | Recycle):
            rows = unpacked(message.transitions) if isinstance(message, Batch) else message.starts
            named = zip(message.identities.tolist(), rows.s_tm1, rows.a_tm1.tolist(), rows.r_t.tolist(), strict=True)
            for identity, *transition in named:
                known = self._identities.setdefault(identity, transition)
                assert known == transition, f"identity {identity} is reused"

    def died(self, host: ReplayHost, is_whole: bool) -> None:
        """Note the end of a replay process that has not saved; `is_whole`: it had written everything."""
        is_whole = is_whole and not host.service.held
        self._died = Died(list(host.settled), digest_of(host.service) if is_whole else None)
        self._is_broken |= not self._storage.has_journal

    def power_was_cut(self) -> None:
        """Note that the disk has lost what was not synced."""
        self._is_broken |= not self._storage.awaits_sync
        self._storage.may_be_damaged |= not self._storage.awaits_sync
        if self._died:
            self._died = self._died._replace(digest=None)

    @property
    def awaits_recovery(self) -> bool:
        """Whether the last replay process has not saved at its end."""
        return self._died is not None

    def given_up(self) -> None:
        """Note that the user gives up a part of the journal; the rest must be kept."""
        self._is_broken = True

    def recovered(self, host: ReplayHost) -> None:
        """Check the process that continues."""
        assert host.service.t >= self._storage.kept_t, "what precedes the damage of the journal is given up as well"
        self._storage.kept_t = 0
        died, self._died = self._died, None
        if died is None:
            return
        self._accounts.rolled_back(died.settled, host.settled)
        if self._is_broken:
            self._t, self._is_broken = host.service.t, False
            self._identities.clear()
            return
        lost = (set(died.settled) - set(host.settled)) & self._accounts.acknowledged
        assert not lost, f"acknowledged, and lost: {sorted(lost)}"
        assert host.service.t >= self._t, f"the clock went back from {self._t} to {host.service.t}"
        if died.digest is not None:
            self.recoveries += 1
            assert digest_of(host.service) == died.digest, "the recovered state is another one"
