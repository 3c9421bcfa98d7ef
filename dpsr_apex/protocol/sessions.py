"""The members of a run: rules for joining, leases and addresses. A state machine without sockets and clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from dpsr_apex import timeouts
from dpsr_apex.protocol.inbox import Key
from dpsr_apex.replay.layout import UNKNOWN
from dpsr_apex.wire.messages import ACTOR, EVALUATOR, LEARNER, Join

LONGEST_NAME = 100  # characters
REMEMBERED = 10_000  # names of actors that have ended


@dataclass
class Session:
    """One member, from its first Join until it leaves, crashes or lets its lease expire."""

    name: str
    role: str
    incarnation: int
    address: bytes
    index: int  # of an actor among the actors; -1 for other roles
    heard: float  # when its last message arrived
    host: str = ""  # of the machine that it joined from; empty for the replay's own
    weights_endpoint: str = ""

    @property
    def key(self) -> Key:
        """Identifies the process across its sessions."""
        return self.name, self.incarnation

    @property
    def title(self) -> str:
        """Its name, and its host if that is another machine."""
        return titled(self.name, self.host)


class Sessions:
    """The sessions by name and by address; both are unique."""

    def __init__(self, run_id: str, emulator: str, lease: float, planned: int) -> None:
        self.learner: Session | None = None
        self.planned = planned  # actors
        # Of actors and learner: the description given by the first one to join, and the layout of its transitions.
        self.environment, self.layout = "", UNKNOWN
        self._run_id = run_id
        self._emulator = emulator
        self._lease = lease
        self._by_name: dict[str, Session] = {}
        self._by_address: dict[bytes, Session] = {}
        self._former: dict[str, int] = {}  # indices of actors that have ended, by name, the newest last
        self._ended: dict[str, float] = {}  # by role: when a former member was last heard from
        self._checked_at: float | None = None  # when `silent` was last called

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._by_name.values())

    @property
    def actors(self) -> list[Session]:
        """Return the actors in the order in which they joined."""
        return [session for session in self if session.role == "actor"]

    def at(self, address: bytes) -> Session | None:
        """Return the session with this address."""
        return self._by_address.get(address)

    def named(self, name: str) -> Session | None:
        """Return the session with this name."""
        return self._by_name.get(name)

    def of(self, key: Key) -> Session | None:
        """Return the session of this process."""
        session = self._by_name.get(key[0])
        return session if session and session.key == key else None

    def has(self, role: str) -> bool:
        """Whether a member has this role."""
        return any(session.role == role for session in self)

    def last_heard(self, role: str) -> float | None:
        """Return when a process of this role was last heard from, including former members; None if never."""
        times = [session.heard for session in self if session.role == role]
        return max([*times, self._ended[role]] if role in self._ended else times, default=None)

    def refusal(self, join: Join, role: str, now: float) -> str:
        """Return why a process with the key of this role cannot join, and what to do about it; empty if it can."""
        if join.run_id != self._run_id:
            return f"this is the run {self._run_id}, not {shown(join.run_id)}: check the address that was given"
        if join.name.strip() != join.name or join.name == "" or shown(join.name) != join.name:
            return f"the name {shown(join.name)!r} must have 1 to {LONGEST_NAME} printable characters, no space around"
        if join.role != role:
            return f"{join.name} has the {role}'s key and cannot join as {shown(join.role)!r}: check its --key"
        if _reserved_for(join.name) not in ("", role):
            return f"the name {join.name} is reserved for the {_reserved_for(join.name)}: choose another --name"
        if join.emulator != self._emulator:
            return (
                f"{join.name} has ale-py {shown(join.emulator)} and this run has {self._emulator}, "
                "whose games and snapshots may differ: install the same version"
            )
        if self._is_foreign(join):
            return (
                f"the environment of {join.name} ({shown(join.environment)}) differs from that of this run "
                f"({self.environment}): install the same versions and the same games"
            )
        return "" if self.is_undecided(join, now) else self._conflict(join, now)

    def is_undecided(self, join: Join, now: float) -> bool:
        """Whether the member of the same name may have died: it has missed a heartbeat, and is not silent yet.

        Refused at once, a process that was restarted would end again, and be given up after a few times.
        """
        namesake = self._by_name.get(join.name)
        if namesake is None or namesake.role != join.role or namesake.incarnation == join.incarnation:
            return False
        return timeouts.HEARTBEAT < now - namesake.heard <= timeouts.MEMBER_SILENCE

    def enter(self, join: Join, address: bytes, now: float, host: str) -> Session:
        """Admit a process that is not rejected; a member that rejoins continues at its new address."""
        session = self._by_name.get(join.name)
        if session is None:
            session = Session(join.name, join.role, join.incarnation, address, self._index_for(join), now)
        self._by_address.pop(session.address, None)
        self._by_name[session.name] = self._by_address[address] = session
        session.address, session.heard, session.host = address, now, host
        session.weights_endpoint = join.weights_endpoint
        if _plays(join):
            self.environment, self.layout = join.environment, join.layout
        if session.role == "learner":
            self.learner = session
        return session

    def end(self, session: Session) -> None:
        """End a session, which frees its name and its index; an actor that returns gets its index back if possible."""
        del self._by_name[session.name], self._by_address[session.address]
        if session.role == "actor":
            self._remember(session)
        if session is self.learner:
            self.learner = None
        self._ended[session.role] = max(session.heard, self._ended.get(session.role, session.heard))

    def is_replaced_by(self, join: Join, namesake: Session, now: float) -> bool:
        """Whether the member of the same name is silent, so that this process may replace it."""
        is_next = namesake.role == join.role and namesake.incarnation != join.incarnation
        return is_next and now - namesake.heard > timeouts.MEMBER_SILENCE

    def silent(self, now: float) -> list[Session]:
        """Return the members whose lease has expired; must be called often.

        A long gap between two calls does not count, because this process itself was not listening.
        """
        if self._checked_at is not None and now - self._checked_at > timeouts.LEASE_CHECK_GAP:
            for session in self:
                session.heard = min(session.heard + now - self._checked_at, now)
        self._checked_at = now
        return [session for session in self if now - session.heard > self._lease]

    def _is_foreign(self, join: Join) -> bool:
        own = self.environment, self.layout
        return _plays(join) and bool(self.environment) and (join.environment, join.layout) != own

    def _conflict(self, join: Join, now: float) -> str:
        """Return which existing member prevents this process from joining; empty if none does."""
        namesake, learner = self._by_name.get(join.name), self.learner
        if namesake and self.is_replaced_by(join, namesake, now):
            return ""
        if namesake and (namesake.incarnation, namesake.role) != (join.incarnation, join.role):
            ago = f"{now - namesake.heard:.1f} s ago"
            return f"the name {join.name} is taken by a process heard from {ago}: choose another --name"
        if join.role == "learner" and learner and learner is not namesake:
            ago = f"{now - learner.heard:.1f} s ago"
            return f"a run has one learner, and {learner.name} is a member, heard from {ago}"
        return ""

    def _index_for(self, join: Join) -> int:
        """Return an actor's index: the number in its name, its former index, or the lowest free one; -1 for others.

        Supervisors and schedulers number the planned actors in their names, so each actor keeps its index after all
        have rejoined in any order.
        """
        if join.role != "actor":
            return -1
        taken = {actor.index for actor in self.actors}
        number, former = _number(join.name), self._former.get(join.name)
        preferred = [number if number is not None and number < self.planned else None, former]
        free = (index for index in preferred if index is not None and index not in taken)
        return next(free, next(index for index in count() if index not in taken))

    def _remember(self, actor: Session) -> None:
        """Store its index in case it returns; the oldest are dropped, because the number of names is unlimited."""
        self._former.pop(actor.name, None)
        self._former[actor.name] = actor.index
        if len(self._former) > REMEMBERED:
            del self._former[next(iter(self._former))]


def _number(name: str) -> int | None:
    """Return N of `actor-N`; None for other names."""
    number = name.removeprefix("actor-")
    return int(number) if number.isdecimal() and len(number) < 10 and number != name else None


def _reserved_for(name: str) -> str:
    """Return the role of the processes that supervisors give this name; empty for other names.

    Otherwise a process with the key of another role could keep them out of the run by taking their names.
    """
    if name in (LEARNER, EVALUATOR):
        return name
    return ACTOR if _number(name) is not None else ""


def titled(name: str, host: str) -> str:
    """Return a name, with the host if that is another machine."""
    return f"{name} at {host}" if host else name


def shown(text: str) -> str:
    """Return text from another process as one line: printable, and truncated if it is too long."""
    return text if text.isprintable() and len(text) <= LONGEST_NAME else f"{ascii(text[:20])[1:-1]}..."


def _plays(join: Join) -> bool:
    """Whether its environment must match that of the others; an evaluator's is built differently."""
    return join.role in ("actor", "learner") and join.environment != ""
