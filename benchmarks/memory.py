"""Resident memory of 50,000 Breakout transitions with their snapshots, played by the real actor with random actions.

Read from the operating system, so everything counts: the frames, Python's objects around them, the trees, and what the
allocators waste. Read twice: when the replay is full, and after as many transitions again, since neighbours share
frames and lose that where priorities replace one without the other.

The peers get the first of the same pictures and have no snapshots. They are read when they are full; ours is compared
as it is later, when it takes most.
"""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.measure import Comparison, Report, Spread, parse_options
from benchmarks.peers import REVERB, TORCH, Peer
from dpsr_apex.config import Config
from dpsr_apex.config_files import load_config
from dpsr_apex.envs.compression import FrameCodec
from dpsr_apex.replay.memory import DpsrReplay
from dpsr_apex.replay.transitions import Transitions
from dpsr_apex.roles.actor import Actor
from dpsr_apex.roles.build import build_agent, build_env

TRANSITIONS = 50_000
WARM_UP = 600  # transitions, into a replay of half that capacity
PEERS_TRANSITIONS = 20_000
PLAIN = 2 * 4 * 84 * 84  # bytes of a transition in plain arrays: two stacks of four frames
CHUNK = 100  # steps that Reverb squeezes together: what takes least of 1, 5, 20, 50, 100 and 200
GOAL = 40  # times smaller than plain

# The greatest replacing exponent and the fewest candidates of the paper: what scatters neighbours most.
OVERRIDES = (
    "replay.method=double",
    f"replay.capacity={TRANSITIONS}",
    "replay.replacing_exponent=0.6",
    "replay.replace_candidates=128",
    "actor.exploration=1.0",
)

PHASES = ("ours, replay filled", "ours, as many again, replacing by priority")


def resident() -> int:
    """Bytes of this process in memory now, without what its allocator keeps for later."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class Recorder:
    """Keeps what the peers are to store: the newest frame of every s_tm1, and what came of it.

    Straight in files: what our own process holds would be counted as the replay's.
    """

    def __init__(self, folder: Path, codec: FrameCodec) -> None:
        self._codec = codec
        self._frames, self._steps = (folder / "frames").open("wb"), (folder / "steps").open("wb")
        self._left = PEERS_TRANSITIONS

    def take(self, transitions: Transitions) -> None:
        """Write them down, if there are not enough yet."""
        if self._left <= 0:
            return
        self._left -= len(transitions)
        for stack in transitions.s_tm1:
            self._frames.write(self._codec.inflate(stack[-1]).data)
        columns = (transitions.a_tm1, transitions.r_t, transitions.terminal)
        self._steps.write(np.column_stack(columns).astype(np.float32).tobytes())

    def close(self) -> None:
        """Nothing more will come."""
        self._frames.close()
        self._steps.close()


def play(
    actor: Actor, replay: DpsrReplay, count: int, rng: np.random.Generator, recorder: Recorder | None = None
) -> None:
    """Insert `count` transitions, with priorities as widely spread as a lognormal of sigma 2 gives them."""
    for _ in range(count):
        insert = actor.step()
        assert insert
        replay.insert(insert.transitions, rng.lognormal(-3.0, 2.0, len(insert.transitions)))
        if recorder:
            recorder.take(insert.transitions)


def stored_pieces(replay: DpsrReplay) -> tuple[int, int]:
    """How many different frames and snapshots are held, and the bytes of their content."""
    stored = replay.read(replay.identities)
    stacks = (*stored.s_tm1, *stored.s_t, stored.snapshots)
    pieces = {id(piece): len(piece) for stack in stacks for piece in stack}
    return len(pieces), sum(pieces.values())


def make_actor(config: Config) -> Actor:
    """Plays at random: its network is made, but never asked."""
    env = build_env(config, seed=0, training=True)
    return Actor(config, build_agent(config, env, seed=0), [env], None, np.random.default_rng(0))


def make_replay(config: Config, rng: np.random.Generator) -> DpsrReplay:
    return DpsrReplay(config.replay, config.run.total_steps, rng)


def measure(folder: Path) -> dict[str, float]:
    """Insert as many transitions as there is room for, once for each phase; the bytes of each after it."""
    rng = np.random.default_rng(1)
    config = load_config("atari/breakout", overrides=OVERRIDES)
    actor = make_actor(config)
    small = load_config("atari/breakout", overrides=[*OVERRIDES, f"replay.capacity={WARM_UP // 2}"])
    play(actor, make_replay(small, rng), WARM_UP, rng)

    before = resident()
    replay = make_replay(config, rng)
    with closing(Recorder(folder, actor.envs[0].codec)) as recorder:
        growths = []
        for _ in PHASES:
            play(actor, replay, TRANSITIONS, rng, recorder)
            growths.append(resident() - before)
    pieces, content = stored_pieces(replay)
    print(f"at the end {pieces:,} frames and snapshots are held, {content / 1e6:.1f} MB")
    return {phase: growth / TRANSITIONS for phase, growth in zip(PHASES, growths, strict=True)}


def measure_peers(folder: Path) -> dict[str, float]:
    """Bytes of a transition in each of them."""
    tianshou = Peer(TORCH, "memory_tianshou.py", folder)
    reverb = Peer(REVERB, "memory_reverb.py", folder, CHUNK)
    growths = {
        f"Reverb's server, single frames appended, chunks of {CHUNK}, no snapshots": reverb.ask(PEERS_TRANSITIONS),
        "tianshou, saving single frames, no snapshots": tianshou.ask(PEERS_TRANSITIONS),
    }
    for peer in (tianshou, reverb):
        peer.close()
    return {name: growth / PEERS_TRANSITIONS for name, (growth,) in growths.items()}


def once(value: float) -> Spread:
    """What was measured a single time."""
    return Spread(value, value, value)


def compare(report: Report, ours: float, beside: str, peer: float, goal: float) -> None:
    report.compare(
        Comparison(
            work="memory of a stored Breakout transition, its snapshot and everything around it included",
            beside=beside,
            unit="bytes",
            ours=once(ours),
            peer=once(peer),
            ratio=once(peer / ours),
            goal=goal,
        )
    )


def show(report: Report) -> None:
    rows = [[who, f"{size:,.0f}", f"{PLAIN / size:.1f}"] for who, size in report.figures["bytes"].items()]
    columns = ("", "bytes of a transition", "times smaller than plain")
    report.table(f"{TRANSITIONS:,} Breakout transitions ({PEERS_TRANSITIONS:,} in the peers)", columns, rows)


def main() -> int:
    options = parse_options(__doc__)
    report = Report("memory")
    with TemporaryDirectory() as folder:
        ours = measure(Path(folder))
        peers = measure_peers(Path(folder))
    plain = {"plain uint8 arrays of both stacks (computed), no snapshots": float(PLAIN)}
    report.figures["bytes"] = ours | peers | plain
    show(report)
    for beside, size in (plain | peers).items():
        compare(report, max(ours.values()), beside, size, GOAL if beside in plain else 1)
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
