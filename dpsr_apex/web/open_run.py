"""A run that is open in the explorer: its sources of transitions, its news, and the description of its environment.

Reading blocks, and a connection to a head belongs to one thread. So each open run has its own thread, in which all work
for it is done, and no lock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, ParamSpec, TypeVar

from dpsr_apex.config import Config, ConfigError
from dpsr_apex.config_files import load_config
from dpsr_apex.envs.compression import FrameCodec
from dpsr_apex.errors import UserError
from dpsr_apex.processes.discovery import FileRegistry, HeadLocator, follow_head
from dpsr_apex.processes.head_client import HeadClient
from dpsr_apex.processes.link import RefusedByReplay, ReplayLost
from dpsr_apex.record.checkpoint import clock_of, list_checkpoints
from dpsr_apex.record.lock import is_served
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.replay.survey import Survey
from dpsr_apex.web import Refusal
from dpsr_apex.web.feed import Feed, News
from dpsr_apex.web.sources import CheckpointSource, Found, LiveSource, Source
from dpsr_apex.web.stars import find_star
from dpsr_apex.wire.messages import OWNER

LIVE, STARRED = "live", "starred"
READ_EVERY = 1.0  # seconds between two reads of a run, however many viewers it has
SURVEY_EVERY = 2.5  # seconds between two surveys of a running run; in between, viewers get the last one
_SOURCES_KEPT = 3  # checkpoints that are kept open
_FOUND_KEPT = 2_000  # transitions that are cached

_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")


class Described(NamedTuple):
    """The environment of a run, as an emulator has described it."""

    facts: dict[str, Any]
    codec: FrameCodec


class OpenRun:
    """One run with at least one viewer."""

    def __init__(self, name: str, run: RunDirectory) -> None:
        self.name = name
        self.run = run
        self.used_at = time.monotonic()
        try:
            self.config: Config = load_config(run.config)
        except (ConfigError, OSError) as error:
            raise Refusal(409, f"The run {name} cannot be read: {error}") from error
        self.described: Described | None = None
        self.describing = asyncio.Lock()
        has_head = self.config.system.actors != 0
        self._client = HeadClient(self._find_head) if has_head else None
        self._feed = Feed(name, run, self.config, self._client)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"run {name}")
        self._news: News | None = None
        self._read_at = 0.0
        self._reading = asyncio.Lock()
        self._sources: dict[str, CheckpointSource] = {}
        self._survey: tuple[float, str, Survey] | None = None
        self._found: dict[tuple[str, int], Found] = {}

    async def do(
        self, work: Callable[_Arguments, _Result], *arguments: _Arguments.args, **named: _Arguments.kwargs
    ) -> _Result:
        """Do some work in the thread of the run."""
        self.used_at = time.monotonic()
        return await asyncio.get_running_loop().run_in_executor(self._executor, lambda: work(*arguments, **named))

    async def news(self) -> News:
        """Return the state of the run's records, at most `READ_EVERY` seconds old."""
        async with self._reading:
            if self._news is None or time.monotonic() - self._read_at >= READ_EVERY:
                self._news = await self.do(self._feed.read)
                self._read_at = time.monotonic()
            return self._news

    def default_source(self) -> str:
        """Return the newest source: the head of a running run, else the newest checkpoint."""
        if self._client is not None and is_served(self.run):
            return LIVE
        saved = list_checkpoints(self.run.checkpoints)
        if not saved:
            raise Refusal(404, f"The run {self.name} has no checkpoint yet, and no head.")
        return str(clock_of(saved[-1]))

    def sources(self) -> list[str]:
        """Return all sources, the newest first."""
        live = [LIVE] if self._client is not None and is_served(self.run) else []
        return [*live, *(str(clock_of(path)) for path in reversed(list_checkpoints(self.run.checkpoints)))]

    def survey(self, at: str) -> tuple[str, Survey]:
        """Return a source's label and its survey; surveys of a running run are shared for a while."""
        label = at or self.default_source()
        if self._survey and self._survey[1] == label:
            age = time.monotonic() - self._survey[0]
            if label != LIVE or age < SURVEY_EVERY:
                return label, self._survey[2]
        survey = _asked(self._source(label).survey)
        self._survey = time.monotonic(), label, survey
        return label, survey

    def find(self, at: str, identities: Sequence[int]) -> dict[int, Found]:
        """Return those of these transitions that this source has.

        They are cached, so that a transition that a viewer has seen can be opened after the run has replaced it.
        """
        label = at or self.default_source()
        missing = [identity for identity in identities if (label, identity) not in self._found]
        if missing and label == STARRED:
            starred = {identity: find_star(self.run, identity) for identity in missing}
            return {identity: found for identity, found in starred.items() if found}
        if missing:
            while len(self._found) > _FOUND_KEPT:
                del self._found[next(iter(self._found))]
            for found in _asked(lambda: self._source(label).find(missing)):
                self._found[label, found.plain.identity] = found
        wanted = {identity: self._found.get((label, identity)) for identity in identities}
        return {identity: found for identity, found in wanted.items() if found}

    def find_one(self, at: str, identity: int) -> tuple[str, Found]:
        """Return one transition and its source: the given one if that has it, else any other."""
        reason = f"Transition {identity} is not in the replay: it was replaced, or never existed."
        refusal = Refusal(404, reason)
        for label in dict.fromkeys([*([at] if at else []), *self.sources(), STARRED]):
            try:
                if found := self.find(label, [identity]).get(identity):
                    return label, found
            except Refusal as refused:
                refusal = refused if label == at else refusal
        raise refusal

    def close(self) -> None:
        """Close the connection and end the thread."""
        if self._client is not None:
            self._executor.submit(self._client.close)
        self._executor.shutdown(wait=False)

    def _source(self, label: str) -> Source:
        if label == LIVE:
            if self._client is None or not is_served(self.run):
                raise Refusal(409, f"The run {self.name} is not running, or has no head.")
            return LiveSource(self._client)
        if label not in self._sources:
            paths = {str(clock_of(path)): path for path in list_checkpoints(self.run.checkpoints)}
            if label not in paths:
                raise Refusal(404, f"The run {self.name} has no checkpoint at t = {label} any more.")
            while len(self._sources) >= _SOURCES_KEPT:
                del self._sources[next(iter(self._sources))]
            self._sources[label] = CheckpointSource(paths[label], self.config)
        return self._sources[label]

    def _find_head(self) -> HeadLocator | None:
        try:
            return follow_head(FileRegistry(self.run.connection), self.run.key_of(OWNER), OWNER)
        except UserError:
            return None


def _asked(question: Callable[[], _Result]) -> _Result:
    try:
        return question()
    except (RefusedByReplay, ReplayLost) as error:
        raise Refusal(503, f"The head of the run did not answer: {error}") from error
