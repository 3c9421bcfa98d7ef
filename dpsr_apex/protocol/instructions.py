"""Instructions that the supervision of a run returns to its shell, and the records that the shell reports to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dpsr_apex.wire.messages import Gone


class HeadStatus(NamedTuple):
    """The part of the head's statistics that the supervision uses."""

    t: int  # transitions inserted
    batches: int  # sent to the learner
    planned_actors: int
    is_ending: bool  # whether the members were told to leave
    era: int  # random number of this replay process
    heard: Mapping[str, float]  # by name of each member: seconds since its last message
    waiting: str | None  # description of who waits for whom


class Resources(NamedTuple):
    """The answer to `FindResources`."""

    lacking: frozenset[str]  # roles for which no node has enough free resources
    preemptible: Mapping[str, Sequence[str]]  # by role: the fewest actors to stop so that enough resources are free
    summary: str  # of all resources, for the user


@dataclass(frozen=True, slots=True)
class Start:
    """Start a process as soon as there are resources for it; resources reserved for it are reused."""

    name: str
    role: str


@dataclass(frozen=True, slots=True)
class Terminate:
    """Send SIGTERM to a process; a process that still waits for resources is not started."""

    name: str


@dataclass(frozen=True, slots=True)
class Kill:
    """End a process at once, and release its resources."""

    name: str


@dataclass(frozen=True, slots=True)
class Release:
    """Release the resources reserved for the next start of a process that has ended."""

    name: str


@dataclass(frozen=True, slots=True)
class Tell:
    """Send a message to the head."""

    message: Gone


@dataclass(frozen=True, slots=True)
class Report:
    """Show a text to the user."""

    text: str


@dataclass(frozen=True, slots=True)
class FindResources:
    """Look up whether there are resources for these roles; the answer is the event `resources`."""

    roles: frozenset[str]
    actors: tuple[str, ...]  # names of actors that have resources and could be preempted


Instruction = Start | Terminate | Kill | Release | Tell | Report | FindResources
