"""One tree of frozen dataclasses that says everything about a run; every wrong key or value is refused with a reason.

Nothing here opens a file, an environment or a device: reading TOML and layering overrides is `dpsr_apex.config_files`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import astuple, dataclass, field
from types import NoneType, UnionType
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin, get_type_hints

from dpsr_apex.replay.schedules import Schedule, constant

Device = Literal["auto", "cpu", "cuda"]
Method = Literal["uniform", "per", "per_rank", "double", "dpsr"]


@dataclass(frozen=True)
class EnvConfig:
    """The environment to learn."""

    name: str = "CartPole-v1"  # "Breakout" of ALE, "MinAtar/Breakout", a Gymnasium id, "Corridor", "module:Class"
    arguments: dict[str, Any] = field(default_factory=dict)  # keyword arguments of the environment's constructor
    stack: int | None = None  # frames in one observation; None = 4 for grey frames, 1 for planes and vectors


@dataclass(frozen=True)
class ReplayConfig:
    """The replay: what is stored, drawn, replaced and recycled. Symbols of the paper are beside each key."""

    method: Method = "dpsr"  # what is drawn by, what is replaced, and whether anything is recycled
    capacity: int = 50_000  # N, transitions
    sampling_exponent: Schedule = field(default=constant(0.6))  # alpha(t): drawn by p ** alpha
    bias_annealing: Schedule = field(default=Schedule(0.4, 1.0))  # beta(t): of the weights, 1 undoes all bias
    replacing_exponent: Schedule = field(default=constant(0.3))  # gamma(t): replaced by p ** -gamma; not the discount
    replace_candidates: int = 256  # C_c, transitions drawn for one common replacement; the oldest makes room
    recycle_candidates: int = 16  # C_r, transitions whose states are entered again in one round
    recycle_period: int = 10_000  # F_r, transitions between recycling rounds; 0 = off
    recycle_at_max_priority: bool = False  # M: recycled transitions enter with the greatest priority, not their own
    priority_floor: float = 1e-6  # added to |TD error|
    initial_priority: Literal["max", "td_error"] = "max"  # td_error: the actor's own, as in Ape-X
    exponent_tolerance: float = 0.01  # leaves are rebuilt when alpha(t) or gamma(t) has moved by more than this

    @property
    def alpha(self) -> Schedule:
        """The sampling exponent that the method really uses: 0, so every transition alike, for `uniform`."""
        return constant(0.0) if self.method == "uniform" else self.sampling_exponent

    @property
    def sampling(self) -> Literal["proportional", "rank"]:
        """What a transition is drawn by: its priority itself, or the rank of its priority."""
        return "rank" if self.method == "per_rank" else "proportional"

    @property
    def replaces_by_priority(self) -> bool:
        """Whether a full replay replaces the oldest of C_c drawn candidates, instead of the oldest of all."""
        return self.method in ("double", "dpsr")

    @property
    def recycles(self) -> bool:
        """Whether recycling rounds happen at all."""
        return self.method == "dpsr" and self.recycle_period > 0


@dataclass(frozen=True)
class ActorConfig:
    """How experience is gathered."""

    exploration: Schedule = field(default=Schedule(1.0, 0.02, over=0.1))  # epsilon(t), share of random actions
    environments: int = 1  # games stepped side by side by one actor
    n_steps: int = 1  # steps of the return stored with each transition
    ladder: bool = False  # as in Ape-X: environment i of all n keeps epsilon = 0.4 ** (1 + 7 i / (n - 1))


@dataclass(frozen=True)
class LearnerConfig:
    """How the network learns."""

    batch_size: int = 32  # k, transitions
    learning_rate: float = 0.0005  # eta, of Adam
    discount: float = 1.0  # of future reward, per environment step
    steps_per_update: int = 1  # F_s, transitions; 0 = free running, as in Ape-X, where nobody waits
    target_period: int = 500  # F_t, transitions between copies of the network to its target
    learning_starts: int = 1_000  # transitions before the first update
    gradient_clip: float = 10.0  # greatest norm of a gradient
    hidden: tuple[int, ...] = (64, 64)  # layers of the MLP for vector observations
    head: int = 256  # units of each of the two dueling heads
    device: Device = "auto"  # auto = a GPU where there is one


@dataclass(frozen=True)
class EvaluationConfig:
    """Whole games without exploration noise to speak of, unclipped, in environments of their own."""

    period: int = 0  # transitions between evaluations; 0 = only at the end
    episodes: int = 10  # whole games in each
    epsilon: float = 0.001  # share of random actions
    max_steps: int = 27_000  # of one game, in agent steps: an agent that hangs must not hang the evaluation


@dataclass(frozen=True)
class SystemConfig:
    """How the processes of a run work together; a single process reads none of it but `actors`."""

    actors: int | None = None  # processes of this machine; 0 = all in one process, None = what there is room for
    chunk: int = 50  # transitions that an actor sends at a time
    window: int = 4  # chunks of one actor that may be on their way; then it waits for the replay
    weights_period: int = 100  # steps of an actor between two questions for newer weights
    prefetch: int = 4  # batches that the learner asks for ahead
    rate_tolerance: int = 200  # transitions by which insertion may run ahead of the updates that it is owed
    recycle_deadline: float = 10.0  # seconds until a recycling round ends with what has arrived
    lease: float = 10.0  # seconds of silence after which a process counts as gone


@dataclass(frozen=True)
class RunConfig:
    """The run as a whole."""

    seed: int = 0  # of everything random
    total_steps: int = 1_000_000  # T, transitions
    log_period: int = 1_000  # transitions between rows of metrics.jsonl
    checkpoint_period: int = 50_000  # transitions; 0 = only when the run ends or is stopped
    checkpoints_kept: int = 2  # the newest; older ones are removed
    threads: int | None = None  # of torch; None = every usable core for pictures, 1 for small ones and vectors


@dataclass(frozen=True)
class Config:
    """Everything that a run needs to know; written into its run directory, where it can be run again as it is."""

    env: EnvConfig = EnvConfig()
    replay: ReplayConfig = ReplayConfig()
    actor: ActorConfig = ActorConfig()
    learner: LearnerConfig = LearnerConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    run: RunConfig = RunConfig()
    system: SystemConfig = SystemConfig()


class ConfigError(ValueError):
    """A configuration that cannot be run; one line for each fault."""

    def __init__(self, *faults: object) -> None:
        super().__init__("\n".join(map(str, faults)))


class Fault(NamedTuple):
    """One refused setting."""

    key: str  # dotted; of a schedule or a list the very part: "actor.exploration.end", "learner.hidden[0]"
    value: Any
    allowed: str

    @property
    def setting(self) -> str:
        """The setting that `key` is, or is part of."""
        return ".".join(self.key.partition("[")[0].split(".")[:2])

    def __str__(self) -> str:
        shown = repr(self.value)
        return f"{self.key} = {shown if len(shown) <= 80 else shown[:77] + '...'}: {self.allowed}"


class Range(NamedTuple):
    """The numbers from `low` to `high`, both included unless `above` leaves out `low`."""

    low: float
    high: float = math.inf
    above: bool = False

    def __str__(self) -> str:
        if self.above:
            return f"above {self.low}" + (f" and at most {self.high}" if self.high < math.inf else "")
        return f"from {self.low} to {self.high}" if self.high < math.inf else f"at least {self.low}"

    def holds(self, number: float) -> bool:
        """Whether `number` is in the range."""
        return self.low <= number <= self.high and not (self.above and number == self.low)


SECTIONS: Final[dict[str, Any]] = get_type_hints(Config)
KINDS: Final[dict[str, Any]] = {
    f"{section}.{name}": kind for section, cls in SECTIONS.items() for name, kind in get_type_hints(cls).items()
}

_ONE_OR_MORE = Range(1)
_ZERO_OR_MORE = Range(0)
_POSITIVE = Range(0, above=True)
_UNIT = Range(0, 1)
_SHARE = Range(0, 1, above=True)
_EXPONENT = Range(0, 5)  # with priorities from 1e-50 to 1e50, sums of p ** 5 and p ** -5 are finite

# The range of every number; of both ends of a schedule, and of every element of a list.
RANGES: Final[dict[str, Range]] = {
    "env.stack": Range(1, 255),
    "replay.capacity": Range(1, 2**31 - 1),
    "replay.sampling_exponent": _EXPONENT,
    "replay.bias_annealing": _UNIT,
    "replay.replacing_exponent": _EXPONENT,
    "replay.replace_candidates": _ZERO_OR_MORE,
    "replay.recycle_candidates": _ZERO_OR_MORE,
    "replay.recycle_period": _ZERO_OR_MORE,
    "replay.priority_floor": Range(1e-50, 1),
    "replay.exponent_tolerance": _UNIT,
    "actor.exploration": _UNIT,
    "actor.environments": _ONE_OR_MORE,
    "actor.n_steps": Range(1, 255),  # travels as one byte
    "learner.batch_size": _ONE_OR_MORE,
    "learner.learning_rate": _POSITIVE,
    "learner.discount": _UNIT,
    "learner.steps_per_update": _ZERO_OR_MORE,
    "learner.target_period": _ONE_OR_MORE,
    "learner.learning_starts": _ONE_OR_MORE,
    "learner.gradient_clip": _POSITIVE,
    "learner.hidden": _ONE_OR_MORE,
    "learner.head": _ONE_OR_MORE,
    "evaluation.period": _ZERO_OR_MORE,
    "evaluation.episodes": _ONE_OR_MORE,
    "evaluation.epsilon": _UNIT,
    "evaluation.max_steps": _ONE_OR_MORE,
    "run.seed": Range(0, 2**31 - 1),
    "run.total_steps": _ONE_OR_MORE,
    "run.log_period": _ONE_OR_MORE,
    "run.checkpoint_period": _ZERO_OR_MORE,
    "run.checkpoints_kept": _ONE_OR_MORE,
    "run.threads": _ONE_OR_MORE,
    "system.actors": _ZERO_OR_MORE,
    "system.chunk": Range(1, 10_000),
    "system.window": Range(1, 100),
    "system.weights_period": _ONE_OR_MORE,
    "system.prefetch": Range(1, 100),
    "system.rate_tolerance": _ONE_OR_MORE,
    "system.recycle_deadline": _POSITIVE,
    "system.lease": Range(1),
}

# The first setting may not be greater than the second.
AT_MOST: Final = (
    ("replay.replace_candidates", "replay.capacity"),
    ("replay.recycle_candidates", "replay.capacity"),
    ("learner.batch_size", "replay.capacity"),
    ("learner.batch_size", "learner.learning_starts"),
    ("learner.learning_starts", "run.total_steps"),
)


def settings(config: Config) -> dict[str, Any]:
    """Every value of the tree by its dotted key."""
    return {key: getattr(getattr(config, section), name) for key in KINDS for section, name in [key.split(".")]}


def validate(config: Config) -> None:
    """Raise a ConfigError that names every fault of `config`; return if there is none."""
    faults = find_faults(config)
    if faults:
        raise ConfigError(*faults)


def find_faults(config: Config) -> list[Fault]:
    """Every setting that cannot be run, each once for each reason."""
    values = settings(config)
    unfit = [Fault(key, value, describe(KINDS[key])) for key, value in values.items() if not fits(KINDS[key], value)]
    comparable = RANGES.keys() - {fault.key for fault in unfit}
    faults = unfit + [
        Fault(name, number, str(limit))
        for key, span in RANGES.items()
        if key in comparable
        for name, number, limit in _numbers(key, values[key], span)
        if not limit.holds(number)
    ]
    return faults if unfit else faults + list(_conflicts(config, values))


def fits(kind: Any, value: Any) -> bool:
    """Whether `value` is of the type `kind` of a setting: as `isinstance`, but a bool is no int and NaN is no float."""
    if isinstance(kind, UnionType):
        return any(fits(option, value) for option in get_args(kind))
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and len(value) > 0 and all(fits(int, item) for item in value)
    if get_origin(kind) is dict:
        return isinstance(value, dict) and _is_plain(value)
    if kind is Schedule:
        return isinstance(value, Schedule) and all(fits(float, number) for number in astuple(value))
    if kind is float:
        return is_number(value)
    if kind is str:
        return isinstance(value, str) and value != ""
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def describe(kind: Any) -> str:
    """The values that `fits(kind, value)` accepts, in words."""
    if isinstance(kind, UnionType):
        return " or ".join(describe(option) for option in get_args(kind))
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(repr, get_args(kind)))
    words = {
        NoneType: "left out",
        bool: "true or false",
        int: "an integer",
        float: "a finite number",
        str: "text that is not empty",
        tuple: "a list of one or more integers",
        dict: "a table of text, finite numbers, booleans, and lists and tables of them",
        Schedule: "a finite number, or a line such as { start = 1.0, end = 0.1, over = 0.5 }",
    }
    return words[get_origin(kind) or kind]


def is_number(value: Any) -> bool:
    """Whether `value` is an int or a float that a finite float can hold."""
    is_numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return is_numeric and abs(value) <= sys.float_info.max


def _is_plain(value: Any) -> bool:
    """Whether TOML can hold `value` and give it back equal."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return isinstance(value, str | bool) or is_number(value)


def _numbers(key: str, value: Any, span: Range) -> list[tuple[str, float, Range]]:
    """The numbers that a setting is made of, each with its name and its range."""
    if value is None:
        return []
    if isinstance(value, tuple):
        return [(f"{key}[{i}]", item, span) for i, item in enumerate(value)]
    if not isinstance(value, Schedule):
        return [(key, value, span)]
    if value == constant(value.start):
        return [(key, value.start, span)]
    return [(f"{key}.start", value.start, span), (f"{key}.end", value.end, span), (f"{key}.over", value.over, _SHARE)]


def _conflicts(config: Config, values: dict[str, Any]) -> Iterator[Fault]:
    """Settings that are sound alone and not together; those that the method never reads are left in peace."""
    replay = config.replay
    is_read = {"replay.replace_candidates": replay.replaces_by_priority, "replay.recycle_candidates": replay.recycles}
    for key, bound in AT_MOST:
        if is_read.get(key, True) and values[key] > values[bound]:
            yield Fault(key, values[key], f"at most {bound} ({values[bound]})")
    if replay.replaces_by_priority and replay.replace_candidates == 0:
        yield Fault("replay.replace_candidates", 0, f"at least 1 with method {replay.method!r}")
    if replay.recycles and replay.recycle_candidates in (0, 1):
        allowed = (
            "at least 2, because one of a round's slots goes to the new transition (replay.recycle_period = 0: off)"
        )
        yield Fault("replay.recycle_candidates", replay.recycle_candidates, allowed)
    if config.system.actors == 0 and config.learner.steps_per_update == 0:
        allowed = "at least 1 in a single process (system.actors = 0): free running needs processes of their own"
        yield Fault("learner.steps_per_update", 0, allowed)
