"""The configuration of a run: a tree of frozen dataclasses. Every invalid key or value is rejected with a reason.

A setting's type, range, default, unit and meaning are on one line; `docs/configuration.py` generates a page from them.
A comment has the form "symbol, unit: meaning"; symbol and unit are optional. Nothing here opens a file, an environment
or a device; `dpsr_apex.config_files` reads TOML and merges overrides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin, get_type_hints

from dpsr_apex.agents import AGENTS, NETWORKS
from dpsr_apex.errors import UserError
from dpsr_apex.kinds import NameOrClass, OneOf, Range, SomeOf, describe, fits
from dpsr_apex.methods import METHODS, Method
from dpsr_apex.schedules import Schedule, constant
from dpsr_apex.trackers import TRACKERS

Device = Literal["auto", "cpu", "cuda"]

ROUND_STEPS: Final = 50_000  # environment steps of all candidates of a round, at most: they must fit in one message
MOST_IN_BATCH: Final = 100_000  # transitions, which must fit in one message

_AGENTS: Final = NameOrClass(tuple(AGENTS))
_NETWORKS: Final = NameOrClass(tuple(NETWORKS))
_METHODS: Final = OneOf(tuple(METHODS))
_TRACKERS: Final = SomeOf(tuple(TRACKERS))
_EXPONENTS: Final = Range(0, 5)  # with priorities from 1e-50 to 1e50, sums of p ** 5 and p ** -5 are finite
_SHARE: Final = Range(0, 1, above=True)  # fraction of the run over which a schedule changes


@dataclass(frozen=True)
class EnvConfig:
    """The environment to train on."""

    name: str = "CartPole-v1"  # "Breakout" of ALE, "MinAtar/Breakout", a Gymnasium id, "module:Class" or a function
    arguments: dict[str, Any] = field(default_factory=dict)  # keyword arguments of the environment's constructor
    stack: Annotated[int | None, Range(1, 255)] = None  # frames: number in an observation; left out: 4 if grey, else 1
    wrappers: tuple[str, ...] = ()  # Gymnasium wrappers, applied in this order
    reward_limit: Annotated[float, Range(0, above=True)] = 1e6  # greatest |reward| of a step; others count as faulty


@dataclass(frozen=True)
class ReplayConfig:
    """The replay: how transitions are stored, sampled, replaced and recycled. Its gamma is not the discount."""

    method: Annotated[str, _METHODS] = "dpsr"  # replay method: its sampler, remover and recycler
    capacity: Annotated[int, Range(1, 2**31 - 1)] = 50_000  # N, transitions: maximum number stored
    sampling_exponent: Annotated[Schedule, _EXPONENTS] = constant(0.6)  # alpha(t): batches are sampled by p ** alpha
    bias_annealing: Annotated[Schedule, Range(0, 1)] = Schedule(0.4, 1.0)  # beta(t): importance weights; 1 removes bias
    replacing_exponent: Annotated[Schedule, _EXPONENTS] = constant(0.3)  # gamma(t): candidates sampled by p ** -gamma
    replace_candidates: Annotated[int, Range(0)] = 256  # C_c, transitions: candidates, of which the oldest is replaced
    recycle_candidates: Annotated[int, Range(0, ROUND_STEPS)] = 16  # C_r, transitions: candidates per recycling round
    recycle_period: Annotated[int, Range(0)] = 10_000  # F_r, transitions: period of recycling rounds; 0 = off
    recycle_at_max_priority: bool = False  # M: recycled transitions enter with the maximum priority, not their own
    recycle_share: Annotated[float, Range(0, 0.99)] = 0.0  # share of all steps; above 0, it replaces recycle_period
    recycle_steps: Annotated[int, Range(1, 1_000)] = 1  # environment steps: limit from each re-entered state
    recycle_exploration: Annotated[float, Range(0, 1)] = 0.1  # share of random actions after the first one of a chain
    recycle_choice: Literal["low", "high", "novel", "failure"] = "low"  # states to re-enter; low priority = the paper
    recycle_failure_steps: Annotated[int, Range(1)] = 20  # environment steps: window before terminals for "failure"
    priority_floor: Annotated[float, Range(1e-50, 1)] = 1e-6  # constant added to |TD error|
    initial_priority: Literal["max", "td_error"] = "max"  # max = the highest in the replay; td_error = by the actor
    exponent_tolerance: Annotated[float, Range(0, 1)] = 0.01  # change of alpha(t) or gamma(t) that causes a rebuild

    @property
    def parts(self) -> Method:
        """The sampler, the remover and the recycler that the method is composed of."""
        return METHODS[self.method]

    @property
    def recycles(self) -> bool:
        """Whether recycling rounds happen at all."""
        return self.parts.recycles and (self.recycle_period > 0 or self.recycle_share > 0)


@dataclass(frozen=True)
class ActorConfig:
    """How experience is collected."""

    exploration: Annotated[Schedule, Range(0, 1)] = Schedule(1.0, 0.02, over=0.1)  # epsilon(t): share of random actions
    environments: Annotated[int, Range(1)] = 1  # environments: number that an actor steps together
    n_steps: Annotated[int, Range(1, 255)] = 1  # environment steps: n of the n-step returns
    start_from: str | None = None  # file of moments, exported from the explorer, at which some episodes begin
    start_share: Annotated[float, Range(0, 1)] = 0.5  # share of episodes that begin at one of these moments
    ladder: bool = False  # as in Ape-X: environment i of n has the constant epsilon 0.4 ** (1 + 7 i / (n - 1))


@dataclass(frozen=True)
class LearnerConfig:
    """The agent, and how it is trained."""

    agent: Annotated[str, _AGENTS] = "dqn"  # dqn, quantile (QR-DQN) or "module:Class"
    network: Annotated[str, _NETWORKS] = "auto"  # auto = nature, small or mlp, by the observations; or "module:Class"
    network_arguments: dict[str, Any] = field(default_factory=dict)  # keyword arguments of a user's network
    double: bool = True  # the online network chooses the action whose target value is bootstrapped
    dueling: bool = True  # separate heads for the value of a state and the advantages of actions
    quantiles: Annotated[int, Range(2, 1_000)] = 51  # quantiles: number per action, of the quantile agent
    quantile_priority: Literal["mean", "loss"] = "mean"  # priorities: |TD error| of the mean value, or quantile loss
    batch_size: Annotated[int, Range(1, MOST_IN_BATCH)] = 32  # k, transitions: size of a batch
    learning_rate: Annotated[Schedule, Range(0, above=True)] = constant(0.0005)  # eta(t): learning rate of Adam
    adam_epsilon: Annotated[float, Range(0, above=True)] = 1e-8  # added to the root of Adam's second moment
    discount: Annotated[float, Range(0, 1)] = 1.0  # discount factor per environment step
    steps_per_update: Annotated[int, Range(0)] = 1  # F_s, transitions: number per update; 0 = free running, as in Ape-X
    target_period: Annotated[int, Range(1)] = 500  # F_t, transitions: period of updates of the target network
    learning_starts: Annotated[int, Range(1)] = 1_000  # transitions: number inserted before the first update
    gradient_clip: Annotated[float, Range(0, above=True)] = 10.0  # maximum norm of the gradient
    hidden: Annotated[tuple[int, ...], Range(1)] = (64, 64)  # units: size of each hidden layer of the MLP for vectors
    head: Annotated[int, Range(1)] = 256  # units: size of each of the two dueling heads
    device: Device = "auto"  # auto = a GPU if one is available
    precision: Literal["float32", "bfloat16"] = "float32"  # precision of the networks; bfloat16 needs a GPU
    compile: bool = False  # compile the networks with torch.compile


@dataclass(frozen=True)
class EvaluationConfig:
    """Complete episodes with hardly any random actions and unclipped rewards, in separate environments."""

    period: Annotated[int, Range(0)] = 0  # transitions: period of evaluations; 0 = only at the end
    episodes: Annotated[int, Range(1)] = 10  # episodes: number per evaluation; losing a life does not end an episode
    epsilon: Annotated[float, Range(0, 1)] = 0.001  # share of random actions
    max_steps: Annotated[int, Range(1)] = 27_000  # environment steps: maximum length of an episode
    random_episodes: Annotated[int, Range(0)] = 0  # episodes: number played once by a random policy, to compare with
    video: bool = False  # record up to 600 steps of the trained agent as video.mp4 when the run is finished


@dataclass(frozen=True)
class SystemConfig:
    """How the processes of a run work together; a single-process run uses only `actors` and `memory_check`."""

    actors: Annotated[int | None, Range(0)] = None  # processes: number here; 0 = single process; left out: by cores
    chunk: Annotated[int, Range(1, 10_000)] = 50  # transitions: limit of one message of an actor
    in_flight: Annotated[int, Range(1, 100_000)] = 200  # transitions: limit of unacknowledged ones per actor
    in_flight_ahead: Annotated[int, Range(1)] = 128  # updates: worth of transitions that all actors may have in flight
    in_flight_behind: Annotated[int, Range(1)] = 16  # updates: the limit that applies while the learner is behind
    weights_period: Annotated[int, Range(1)] = 100  # environment steps: period of an actor's requests for weights
    weights_age: Annotated[int, Range(1)] = 5  # updates: age of weights, times the actors, at which they are requested
    prefetch: Annotated[int, Range(1, 100)] = 4  # batches: number that the learner requests ahead
    rate_tolerance: Annotated[int, Range(1)] = 10  # transitions: limit of the lead of insertion over updates
    recycle_deadline: Annotated[float, Range(0, above=True)] = 10.0  # seconds: limit of a round, per step of its chains
    lease: Annotated[float, Range(1)] = 10.0  # seconds: silence after which a process is considered gone
    memory_limit: Annotated[int | None, Range(1)] = None  # MiB: limit of the replay process; left out: 90% of free
    memory_check: bool = True  # refuse to start a run that needs more memory than this machine has available


@dataclass(frozen=True)
class RunConfig:
    """The run as a whole."""

    seed: Annotated[int, Range(0, 2**31 - 1)] = 0  # seed of all random generators
    total_steps: Annotated[int, Range(1, 10**12)] = 1_000_000  # T, transitions: length of the run
    environment_steps: Annotated[int | None, Range(1)] = None  # environment steps: end of a single process; left out: T
    log_period: Annotated[int, Range(1)] = 1_000  # transitions: period of rows of metrics.jsonl
    checkpoint_period: Annotated[int, Range(0)] = 50_000  # transitions: period of checkpoints; 0 = only at the end
    checkpoints_kept: Annotated[int, Range(1)] = 2  # checkpoints: number kept; older ones are removed
    durability: Literal["process", "power", "none"] = "process"  # data survive crashes; also power cuts; neither
    learner_state_period: Annotated[int, Range(0)] = 1_000  # updates: period of saving the learner's state; 0 = off
    track: Annotated[tuple[str, ...], _TRACKERS] = ()  # experiment trackers that get the rows of metrics.jsonl too
    threads: Annotated[int | None, Range(1)] = None  # threads: number for torch; left out: 1, or all cores for images


@dataclass(frozen=True)
class Config:
    """Everything that a run depends on; saved in its run directory, from which the run can be repeated."""

    env: EnvConfig = EnvConfig()
    replay: ReplayConfig = ReplayConfig()
    actor: ActorConfig = ActorConfig()
    learner: LearnerConfig = LearnerConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    run: RunConfig = RunConfig()
    system: SystemConfig = SystemConfig()


class ConfigError(UserError, ValueError):
    """Raised for an invalid configuration; one line per fault."""

    def __init__(self, *faults: object) -> None:
        super().__init__("\n".join(map(str, faults)))


class Fault(NamedTuple):
    """One invalid setting."""

    key: str  # dotted; may name a part of a schedule or list: "actor.exploration.end", "learner.hidden[0]"
    value: Any
    allowed: str  # completes "KEY must be ..."

    @property
    def setting(self) -> str:
        """The setting that `key` names, or names a part of."""
        return ".".join(self.key.partition("[")[0].split(".")[:2])

    def __str__(self) -> str:
        shown = repr(self.value)
        return f"{self.key} must be {self.allowed} (got {shown if len(shown) <= 80 else shown[:77] + '...'})"

    def found_in(self, origin: object) -> str:
        """Return the fault as text, with the origin of the value."""
        return f"{self} (from {origin})"


class Setting(NamedTuple):
    """What the type hint of one setting allows."""

    kind: Any  # its bare type, or the allowed names
    range: Range | None  # of its numbers


def _setting(hint: Any) -> Setting:
    if get_origin(hint) is not Annotated:
        return Setting(OneOf(get_args(hint)) if get_origin(hint) is Literal else hint, None)
    kind, limit = get_args(hint)
    return Setting(limit, None) if isinstance(limit, OneOf | NameOrClass) else Setting(kind, limit)


SECTIONS: Final[dict[str, Any]] = get_type_hints(Config)
SETTINGS: Final[dict[str, Setting]] = {  # by dotted key
    f"{section}.{name}": _setting(hint)
    for section, cls in SECTIONS.items()
    for name, hint in get_type_hints(cls, include_extras=True).items()
}

# Settings of what is recorded or checked, which cannot change what is learned: reports do not group runs by them.
INCIDENTAL: Final = (
    *("run.log_period", "run.checkpoint_period", "run.checkpoints_kept", "run.track"),
    *("run.durability", "run.learner_state_period"),
    *("evaluation.random_episodes", "evaluation.video", "system.memory_check", "system.memory_limit"),
)

# What a checkpoint depends on: it can be used only with the settings that it was written with.
FIXED: Final = (
    *("env.name", "env.arguments", "env.stack", "env.wrappers"),
    *("replay.method", "replay.capacity", "replay.recycle_period", "replay.recycle_share", "replay.recycle_choice"),
    *("replay.recycle_failure_steps", "actor.environments", "actor.n_steps", "actor.start_from"),
    *("learner.agent", "learner.network", "learner.network_arguments", "learner.dueling", "learner.quantiles"),
    *("learner.hidden", "learner.head", "learner.discount", "learner.steps_per_update", "learner.learning_starts"),
    "run.seed",
)

# What may be changed in `config.toml` before a run is resumed. Whether `system.actors` is 0 may not.
CHANGEABLE: Final = (
    *("replay.sampling_exponent", "replay.bias_annealing", "replay.replacing_exponent", "replay.replace_candidates"),
    *("replay.recycle_candidates", "replay.recycle_at_max_priority", "replay.recycle_steps"),
    *("replay.recycle_exploration", "replay.priority_floor", "replay.initial_priority", "replay.exponent_tolerance"),
    *("env.reward_limit", "actor.exploration", "actor.start_share", "actor.ladder"),
    *("learner.double", "learner.quantile_priority", "learner.batch_size", "learner.learning_rate"),
    *("learner.adam_epsilon", "learner.target_period", "learner.gradient_clip"),
    *("learner.device", "learner.precision", "learner.compile"),
    *("evaluation.period", "evaluation.episodes", "evaluation.epsilon", "evaluation.max_steps"),
    *("evaluation.random_episodes", "evaluation.video"),
    *("system.actors", "system.chunk", "system.in_flight", "system.in_flight_ahead", "system.in_flight_behind"),
    *("system.weights_period", "system.weights_age", "system.prefetch", "system.rate_tolerance"),
    *("system.recycle_deadline", "system.lease", "system.memory_limit", "system.memory_check"),
    *("run.total_steps", "run.environment_steps", "run.log_period", "run.checkpoint_period"),
    *("run.checkpoints_kept", "run.durability", "run.learner_state_period", "run.track", "run.threads"),
)

# The first setting may not be greater than the second.
AT_MOST: Final = (
    ("replay.replace_candidates", "replay.capacity"),
    ("replay.recycle_candidates", "replay.capacity"),
    ("learner.batch_size", "replay.capacity"),
    ("learner.batch_size", "learner.learning_starts"),
    ("learner.learning_starts", "run.total_steps"),
    ("learner.learning_starts", "run.environment_steps"),
    ("run.environment_steps", "run.total_steps"),
)


def settings(config: Config) -> dict[str, Any]:
    """Return every value of the tree by its dotted key."""
    return {key: getattr(getattr(config, section), name) for key in SETTINGS for section, name in [key.split(".")]}


def validate(config: Config) -> None:
    """Raise a ConfigError that names every fault of `config`; return if there is none."""
    faults = find_faults(config)
    if faults:
        raise ConfigError(*faults)


def find_faults(config: Config) -> list[Fault]:
    """Return all invalid settings, one fault per setting and reason."""
    values = settings(config)
    unfit = [
        Fault(key, values[key], describe(setting.kind))
        for key, setting in SETTINGS.items()
        if not fits(setting.kind, values[key])
    ]
    keys = values.keys() - {fault.key for fault in unfit}
    faults = unfit + [
        Fault(name, number, str(limit))
        for key, setting in SETTINGS.items()
        if key in keys and setting.range
        for name, number, limit in _numbers(key, values[key], setting.range)
        if not limit.holds(number)
    ]
    return faults if unfit else faults + list(_conflicts(config, values))


def _numbers(key: str, value: Any, span: Range) -> list[tuple[str, float, Range]]:
    """Return the numbers that a setting consists of, each with its name and its range."""
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
    """Yield settings that are valid alone but not together; settings that the method does not use are not checked."""
    replay = config.replay
    replaces = replay.parts.replaces_by_priority
    is_read = {"replay.replace_candidates": replaces, "replay.recycle_candidates": replay.recycles}
    for key, bound in AT_MOST:
        if None in (values[key], values[bound]):
            continue
        if is_read.get(key, True) and values[key] > values[bound]:
            yield Fault(key, values[key], f"at most {bound}, which is {values[bound]}")
    if replaces and replay.replace_candidates == 0:
        yield Fault("replay.replace_candidates", 0, f">= 1 with replay.method = {replay.method!r}")
    if replay.recycles and replay.recycle_candidates in (0, 1):
        allowed = ">= 2, since one slot of each round goes to the new transition, or recycling must be off"
        yield Fault("replay.recycle_candidates", replay.recycle_candidates, allowed)
    most = ROUND_STEPS // max(replay.recycle_candidates, 1)
    if replay.recycles and replay.recycle_steps > most:
        allowed = f"at most {most}: {replay.recycle_candidates} candidates may take {ROUND_STEPS} steps together"
        yield Fault("replay.recycle_steps", replay.recycle_steps, allowed)
    if config.run.environment_steps is not None and config.system.actors != 0:
        allowed = "left out, except in a single process (--solo, system.actors = 0)"
        yield Fault("run.environment_steps", config.run.environment_steps, allowed)
    if config.system.actors == 0 and config.learner.steps_per_update == 0:
        allowed = ">= 1 in a single process (system.actors = 0): free running needs separate processes"
        yield Fault("learner.steps_per_update", 0, allowed)
