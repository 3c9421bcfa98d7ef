"""The journal of a replay process: another thread makes it durable, and one writes the state of the learner.

Without a journal (`run.durability = "none"`), everything here does nothing.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from dpsr_apex import timeouts
from dpsr_apex.protocol.replay_service import Outgoing, ReplayService
from dpsr_apex.record.journal.commit import Commit
from dpsr_apex.record.journal.disk import RealDisk
from dpsr_apex.record.journal.journal import Journal
from dpsr_apex.record.journal.learner import write_learner
from dpsr_apex.record.journal.recover import journal_facts
from dpsr_apex.record.journal.segments import list_segments
from dpsr_apex.wire.codec import Frame
from dpsr_apex.wire.messages import Chunk, LearnerState, Message
from dpsr_apex.wire.waker import Waker

log = logging.getLogger(__name__)


class Journaling:
    """Holds back the answers of a service until its journal is as safe as `run.durability` promises."""

    def __init__(self, service: ReplayService, folder: Path, next_: int) -> None:
        """Continue the journal in `folder` with record number `next_`."""
        durability = service.config.run.durability
        self._service = service
        self._next = next_
        self._commit: Commit | None = None
        self._sync: _SyncThread | None = None
        self._learner = _LearnerFile(service, folder)
        self._states_saved = service.learner.states_received
        self._ticked_at = 0.0
        self._found = sum(path.stat().st_size for path in list_segments(RealDisk(), folder).values())
        if durability != "none":
            facts = journal_facts(service.config)
            era = secrets.randbits(62)  # not that of the service, which every client knows
            journal = Journal(RealDisk(), folder, era, next_, facts, awaits_sync=durability == "power")
            self._commit = Commit(service, journal)
            if durability == "power":
                self._sync = _SyncThread(journal)
                self._sync.start()

    @property
    def pollable(self) -> list[int]:
        """What becomes readable when messages may be sent that had to wait."""
        return self._sync.waker.pollable if self._sync else []

    @property
    def bytes_written(self) -> int:
        """Bytes that this process has written to the journal, and those that it has found there."""
        return self._found + self._commit.journal.written if self._commit else 0

    def received(self, message: Message, frames: Sequence[Frame]) -> None:
        """Note the frames of a message before it is handled."""
        if self._commit and isinstance(message, Chunk):
            self._commit.received(message, frames)

    def commit(self, outgoing: Iterable[Outgoing]) -> list[Outgoing]:
        """Write what has changed; return the messages that may be sent."""
        if self._commit is None:
            return list(outgoing)
        ready = self._commit.commit(outgoing)
        if self._sync:
            self._sync.request()
        return ready

    def poll(self) -> list[Outgoing]:
        """Return the messages that may be sent by now. Must be called whenever `pollable` is readable.

        If the disk has failed, raise OSError: this process must end.
        """
        ready: list[Outgoing] = []
        if self._commit and self._sync:
            self._sync.check()
            ready = self._commit.released()
        if self._commit and time.monotonic() - self._ticked_at >= timeouts.JOURNAL_TICK:
            self._ticked_at = time.monotonic()
            ready += self._commit.tick()
            self._save_learner()
        return ready

    @property
    def may_save(self) -> bool:
        """Whether a checkpoint may be taken now."""
        return self._commit is None or self._commit.may_save

    def begin_segment(self) -> int:
        """Return the number of the first record after a checkpoint of now.

        Without a journal it leaves a gap: records that follow a later checkpoint do not continue this one.
        """
        if self._commit is None:
            self._next += 1
            return self._next
        return self._commit.begin_segment()

    def saved(self, positions: Iterable[int]) -> None:
        """Remove the records that no checkpoint needs; each one needs those from its position on."""
        if self._commit:
            self._commit.journal.remove_before(min(positions))

    def close(self) -> list[Outgoing]:
        """End the journal before the last checkpoint; return the messages that may be sent."""
        self._learner.close()
        if self._sync:
            self._sync.stop()
        return self._commit.close() if self._commit else []

    def _save_learner(self) -> None:
        if self._service.learner.states_received != self._states_saved:
            self._states_saved = self._service.learner.states_received
            self._learner.save(self._service.learner.state)
        self._learner.check()


class _SyncThread(threading.Thread):
    """Makes the journal durable, again and again while there is something to do."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(name="journal", daemon=True)
        self.waker = Waker()
        self._journal = journal
        self._requested = threading.Event()
        self._is_stopped = False
        self._error: Exception | None = None

    def request(self) -> None:
        """Make everything durable that is written now, unless it is already."""
        if self._journal.promised < self._journal.next:
            self._requested.set()

    def check(self) -> None:
        """Raise the error of the disk, if there is one."""
        self.waker.clear()
        if self._error is not None:
            raise self._error
        self.request()

    def stop(self) -> None:
        """End the thread."""
        self._is_stopped = True
        self._requested.set()
        self.join()

    def run(self) -> None:
        """Sync whenever it is requested."""
        while self._error is None:
            self._requested.wait()
            self._requested.clear()
            if self._is_stopped:
                return
            try:
                self._journal.sync()
            except Exception as error:
                log.exception("the journal cannot be made durable")
                self._error = error
            self.waker.wake()
            time.sleep(timeouts.JOURNAL_GROUP)  # what comes meanwhile is flushed together, which costs less


class _LearnerFile:
    """Writes the state of the learner in a thread of its own: only the newest one, if several come meanwhile."""

    def __init__(self, service: ReplayService, folder: Path) -> None:
        self._service = service
        self._folder = folder
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="learner-state")
        self._writing: Future[None] | None = None
        self._next: LearnerState | None = None
        self._obstacle = ""

    def save(self, state: LearnerState) -> None:
        """Write this state as soon as possible."""
        self._next = state

    def check(self) -> None:
        """Note a problem of the last write, and begin the next one."""
        if self._writing is not None and self._writing.done():
            self._report(self._writing.exception())
            self._writing = None
        if self._writing is None and self._next is not None:
            self._writing = self._executor.submit(write_learner, RealDisk(), self._folder, self._next)
            self._next = None

    def close(self) -> None:
        """Wait for the write that has begun; the last checkpoint contains the newest state."""
        self._executor.shutdown()

    def _report(self, problem: BaseException | None) -> None:
        if problem is not None and str(problem) != self._obstacle:
            self._service.notes.add(f"The state of the learner could not be written ({problem}); the last one is kept.")
        self._obstacle = str(problem) if problem else ""
