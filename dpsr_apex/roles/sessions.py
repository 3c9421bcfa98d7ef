"""Who is in the run: the rules of joining, the leases, and the addresses. It sends nothing and has no clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from dpsr_apex.roles.inbox import Key
from dpsr_apex.wire.messages import Join

ROLES = ("actor", "learner", "evaluator")
LONGEST_NAME = 100  # characters
REMEMBERED = 10_000  # names of actors that are gone
SILENCE = 3.0  # seconds after which one is missed; a member says something every second
STALL = 1.0  # seconds between two looks at the leases after which it was this process that did not listen


@dataclass
class Session:
    """One process in the run, from its first Join until it leaves or is silent for too long."""

    name: str
    role: str
    incarnation: int
    address: bytes
    index: int  # of an actor among the actors; -1 for others
    heard: float  # when its last message came
    host: str = ""  # of the machine that it joined from; empty for that of the replay
    weights_endpoint: str = ""
    weights_key: bytes = b""

    @property
    def key(self) -> Key:
        """The process, over all its sessions."""
        return self.name, self.incarnation

    @property
    def title(self) -> str:
        """Who it is, in words."""
        return titled(self.name, self.host)


class Sessions:
    """The sessions by name and by address; each has one of both, of its own."""

    def __init__(self, run_id: str, emulator: str, lease: float, planned: int) -> None:
        self.learner: Session | None = None
        self.planned = planned  # actors
        self.environment = ""  # digest of what the actors' and the learner's do; that of the first one to join
        self._run_id = run_id
        self._emulator = emulator
        self._lease = lease
        self._by_name: dict[str, Session] = {}
        self._by_address: dict[bytes, Session] = {}
        self._former: dict[str, int] = {}  # indices of actors that are gone, by name, the newest last
        self._ended: dict[str, float] = {}  # by role: when one that is gone was last heard from
        self._looked: float | None = None  # when `silent` was called last

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._by_name.values())

    @property
    def actors(self) -> list[Session]:
        """The actors, in the order in which they came."""
        return [session for session in self if session.role == "actor"]

    def at(self, address: bytes) -> Session | None:
        """The session of an address."""
        return self._by_address.get(address)

    def named(self, name: str) -> Session | None:
        """The session of a name."""
        return self._by_name.get(name)

    def of(self, key: Key) -> Session | None:
        """The session of a process."""
        session = self._by_name.get(key[0])
        return session if session and session.key == key else None

    def has(self, role: str) -> bool:
        """Whether one of this role is in the run."""
        return any(session.role == role for session in self)

    def last_heard(self, role: str) -> float | None:
        """When anyone of this role was last heard from, those that are gone included; None if there was none."""
        times = [session.heard for session in self if session.role == role]
        return max([*times, self._ended[role]] if role in self._ended else times, default=None)

    def refusal(self, join: Join, now: float) -> str:
        """Why this process cannot be in the run, in words for who started it; empty if it can."""
        if join.run_id != self._run_id:
            return f"this is the run {self._run_id}, not {shown(join.run_id)}: look at the address that was given"
        if join.name == "" or shown(join.name) != join.name:
            return f"{shown(join.name)!r} is no name: it must have 1 to {LONGEST_NAME} printable characters"
        if join.role not in ROLES:
            return f"there is no role {shown(join.role)!r}: it must be one of {', '.join(ROLES)}"
        if join.emulator != self._emulator:
            return (
                f"{join.name} has ale-py {shown(join.emulator)} and this run has {self._emulator}: "
                "games and snapshots may differ, install the same version"
            )
        if self._is_foreign(join):
            return (
                f"the environment of {join.name} does not do what that of the first process in this run does "
                f"({shown(join.environment)}, not {self.environment}): "
                "install the same versions and the same games"
            )
        return self._conflict(join, now)

    def enter(self, join: Join, address: bytes, now: float, host: str) -> Session:
        """Let in a process that is not refused; one that is in already goes on, at its new address."""
        session = self._by_name.get(join.name)
        if session is None:
            session = Session(join.name, join.role, join.incarnation, address, self._index_for(join), now)
        self._by_address.pop(session.address, None)
        self._by_name[session.name] = self._by_address[address] = session
        session.address, session.heard, session.host = address, now, host
        session.weights_endpoint, session.weights_key = join.weights_endpoint, join.weights_key
        if _plays(join):
            self.environment = join.environment
        if session.role == "learner":
            self.learner = session
        return session

    def end(self, session: Session) -> None:
        """Forget a session; its name and its index are free, but an actor may come back for its index."""
        del self._by_name[session.name], self._by_address[session.address]
        if session.role == "actor":
            self._remember(session)
        if session is self.learner:
            self.learner = None
        self._ended[session.role] = max(session.heard, self._ended.get(session.role, session.heard))

    def gives_way(self, namesake: Session, join: Join, now: float) -> bool:
        """Whether this is another process of that name and role: its next life, as its silence shows."""
        is_next = namesake.role == join.role and namesake.incarnation != join.incarnation
        return is_next and now - namesake.heard > SILENCE

    def silent(self, now: float) -> list[Session]:
        """Those not heard from for longer than the lease; to be asked often.

        Time in which nobody asked does not count: then it was this process that did not listen.
        """
        if self._looked is not None and now - self._looked > STALL:
            for session in self:
                session.heard = min(session.heard + now - self._looked, now)
        self._looked = now
        return [session for session in self if now - session.heard > self._lease]

    def _is_foreign(self, join: Join) -> bool:
        return _plays(join) and bool(self.environment) and join.environment != self.environment

    def _conflict(self, join: Join, now: float) -> str:
        """What a process that is in the run has against this one."""
        namesake, learner = self._by_name.get(join.name), self.learner
        if namesake and self.gives_way(namesake, join, now):
            return ""
        if namesake and (namesake.incarnation, namesake.role) != (join.incarnation, join.role):
            ago = f"{now - namesake.heard:.1f} s ago"
            return f"the name {join.name} is taken by a process heard from {ago}: choose another --name"
        if join.role == "learner" and learner and learner is not namesake:
            ago = f"{now - learner.heard:.1f} s ago"
            return f"a run has one learner, and {learner.name} is here, heard from {ago}"
        return ""

    def _index_for(self, join: Join) -> int:
        """For an actor that of its own number, or the one that it had before, or else the lowest; -1 for others.

        Supervisors and schedulers number those that are planned, in their names: so each has the same index again after
        all have joined anew, in whatever order.
        """
        if join.role != "actor":
            return -1
        taken = {actor.index for actor in self.actors}
        number, former = _number(join.name), self._former.get(join.name)
        wishes = [number if number is not None and number < self.planned else None, former]
        free = (wish for wish in wishes if wish is not None and wish not in taken)
        return next(free, next(index for index in count() if index not in taken))

    def _remember(self, actor: Session) -> None:
        """Its index, for when it comes back; names may be without number, so the oldest are forgotten."""
        self._former.pop(actor.name, None)
        self._former[actor.name] = actor.index
        if len(self._former) > REMEMBERED:
            del self._former[next(iter(self._former))]


def _number(name: str) -> int | None:
    """N of `actor-N`."""
    number = name.removeprefix("actor-")
    return int(number) if number.isdecimal() and len(number) < 10 and number != name else None


def titled(name: str, host: str) -> str:
    """A name, and where it is if that is another machine."""
    return f"{name} at {host}" if host else name


def shown(text: str) -> str:
    """What a stranger says of itself, fit for one line that a person reads: printable, and cut where it is too long."""
    return text if text.isprintable() and len(text) <= LONGEST_NAME else f"{ascii(text[:20])[1:-1]}..."


def _plays(join: Join) -> bool:
    """Whether its environment must be that of the others: an evaluator's is made differently."""
    return join.role in ("actor", "learner") and join.environment != ""
