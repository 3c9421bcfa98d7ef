"""One tree of frozen dataclasses that says everything about a run; every wrong key or value is refused with a reason.

Nothing here opens a file, an environment or a device: reading TOML and layering overrides is `dpsr_apex.config_files`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from dpsr_apex.replay.schedules import Schedule, constant

Method = Literal["uniform", "per", "per_rank", "double", "dpsr"]


@dataclass(frozen=True)
class EnvConfig:
    """The environment to learn."""

    name: str = "CartPole-v1"  # an ALE game ("Breakout"), a Gymnasium id, "Corridor", or "package.module:Class"
    arguments: dict[str, Any] = field(default_factory=dict)  # keyword arguments of the environment's constructor
    stack: int | None = None  # frames in one observation; None = 4 for pixels, 1 for vectors


@dataclass(frozen=True)
class ReplayConfig:
    """The replay: what is stored, drawn, replaced and recycled. Symbols of the paper are beside each key."""

    method: Method = "dpsr"
    capacity: int = 50_000  # N, transitions
    sampling_exponent: Schedule = constant(0.6)  # alpha(t)
    bias_annealing: Schedule = Schedule(0.4, 1.0)  # beta(t)
    replacing_exponent: Schedule = constant(0.3)  # gamma(t); not the discount
    replace_candidates: int = 256  # C_c
    recycle_candidates: int = 16  # C_r
    recycle_period: int = 10_000  # F_r, transitions between recycling rounds; 0 = off
    recycle_at_max_priority: bool = False  # M
    priority_floor: float = 1e-6  # added to |TD error|
    initial_priority: Literal["max", "td_error"] = "max"  # td_error: the actor's own, as in Ape-X
    exponent_tolerance: float = 0.01  # leaves are rebuilt when alpha(t) or gamma(t) has moved by more than this


@dataclass(frozen=True)
class ActorConfig:
    """How experience is gathered."""

    exploration: Schedule = Schedule(1.0, 0.02, over=0.1)  # epsilon(t)
    environments: int = 1  # stepped side by side by one actor
    n_steps: int = 1  # of the return stored with each transition


@dataclass(frozen=True)
class LearnerConfig:
    """How the network learns."""

    batch_size: int = 32  # k
    learning_rate: float = 0.0005  # eta
    discount: float = 1.0  # of future reward, per environment step
    steps_per_update: int = 1  # F_s, transitions
    target_period: int = 500  # F_t, transitions
    learning_starts: int = 1_000  # transitions before the first update
    gradient_clip: float = 10.0  # greatest norm of a gradient
    hidden: tuple[int, ...] = (64, 64)  # layers of the MLP for vector observations
    head: int = 256  # units of each of the two dueling heads
    device: Literal["auto", "cpu", "cuda"] = "auto"


@dataclass(frozen=True)
class EvaluationConfig:
    """Whole games without exploration noise to speak of, unclipped, in environments of their own."""

    period: int = 0  # transitions between evaluations; 0 = only at the end
    episodes: int = 10
    epsilon: float = 0.001
    max_steps: int = 27_000  # of one game, in agent steps: an agent that hangs must not hang the evaluation


@dataclass(frozen=True)
class RunConfig:
    """The run as a whole."""

    seed: int = 0
    total_steps: int = 1_000_000  # T, transitions
    log_period: int = 1_000  # transitions between rows of metrics.jsonl
    checkpoint_period: int = 50_000  # transitions; 0 = only when the run ends or is stopped
    checkpoints_kept: int = 2
    threads: int | None = None  # of torch; None = the cores that this process may use


@dataclass(frozen=True)
class Config:
    """Everything that a run needs to know; written into its run directory, where it can be run again as it is."""

    env: EnvConfig = EnvConfig()
    replay: ReplayConfig = ReplayConfig()
    actor: ActorConfig = ActorConfig()
    learner: LearnerConfig = LearnerConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    run: RunConfig = RunConfig()
