"""An emulator process: the environment and the agents of one viewer. It is started by the server,
communicates over its standard streams, and ends when they are closed.

A snapshot that crashes an emulator crashes only this process.
"""

from __future__ import annotations

import importlib
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from dpsr_apex.config import Config
from dpsr_apex.config_files import load_config
from dpsr_apex.envs.compression import DamagedSnapshot
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.errors import UserError
from dpsr_apex.inspection.play_from import seed_of
from dpsr_apex.inspection.rendering import frames_per_second, render_rgb
from dpsr_apex.inspection.stored import StoredTransition, action_name
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.roles.build import build_env
from dpsr_apex.web.analysis import (
    Outcome,
    expectation_of,
    png,
    present_td_error,
    saliency_of,
    try_every_action,
    verified,
)
from dpsr_apex.web.channel import BrokenChannel, Message, Pipe, decode_transition
from dpsr_apex.web.player import Frame, GameOver, Play, Player
from dpsr_apex.web.recording import record
from dpsr_apex.web.weights import WeightsGone, load_weights

SPEEDS: Final = {"slow": 0.25, "real": 1.0, "fast": 4.0, "most": 0.0}  # times the environment's own; 0 = no limit
SHOWN: Final = ("is_screen", "q_values", "action", "by", "reward", "score", "life_lost", "over")  # of a shot
NOOPS: Final = ("NOOP", "none")  # names of the action that does nothing


class Emulator:
    """Executes the commands of one viewer in order; sends frames while it plays."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._config = Config()
        self._training: StackedEnv | None = None
        self._play: Play | None = None
        self._stored: StoredTransition | None = None
        self._is_playing = False
        self._by_hand = False
        self._held: int | None = None  # action of the keys that are pressed; None without any
        self._speed = SPEEDS["real"]
        self._shows_saliency = False
        self._due = 0.0  # time of the next step
        self._commands: dict[str, Callable[..., None]] = {
            "open": self._open,
            "enter": self._enter,
            "compare": self._compare,
            "try": self._try,
            "play": self._start,
            "pause": self._pause,
            "step": self._step_once,
            "drive": self._drive,
            "keys": self._press,
            "branch": self._branch,
            "saliency": self._show_saliency,
            "save": self._save,
        }

    def run(self) -> None:
        """Execute commands until the server closes the channel."""
        while True:
            seconds = max(self._due - time.monotonic(), 0.0) if self._is_stepping else None
            command = self._pipe.receive(seconds)
            if command is None:
                self._step_or_pause()
                continue
            try:
                self._execute(command)
            except (UserError, DamagedSnapshot, GameOver, WeightsGone, ValueError, OSError) as error:
                self._is_playing = False
                self._send("problem", reason=str(error), about=command.head.get("do"))

    def _step_or_pause(self) -> None:
        try:
            self._step()
        except GameOver as over:
            self._pause()
            self._send("problem", reason=str(over), about="step")

    @property
    def _is_stepping(self) -> bool:
        """Whether to take steps without commands: by hand only while a key is held, or if there is a no-op."""
        return self._is_playing and not (self._by_hand and self._action_by_hand is None)

    @property
    def _action_by_hand(self) -> int | None:
        return self._noop if self._held is None else self._held

    @property
    def _noop(self) -> int | None:
        names = self._names
        return next((action for action, name in enumerate(names) if name in NOOPS), None)

    @property
    def _names(self) -> list[str]:
        env = self._training_env
        return [action_name(env, action) for action in range(env.actions)]

    @property
    def _training_env(self) -> StackedEnv:
        """The environment with the rules of training, in which stored transitions are repeated."""
        if self._training is None:
            raise ValueError("No run is open.")
        return self._training

    def _execute(self, command: Message) -> None:
        given = {name: value for name, value in command.head.items() if name not in ("do", "sizes")}
        parts = {"parts": command.parts} if command.parts else {}
        self._commands[command.head["do"]](**given, **parts)

    def _send(self, event: str, parts: list[bytes] | None = None, **facts: Any) -> None:
        self._pipe.send({"event": event} | facts, parts or [])

    # A run, and a moment in it.

    def _open(self, run: str) -> None:
        """Create the environment of a run, and describe it."""
        self._config = load_config(RunDirectory(Path(run)).config)
        self._close()
        env = self._training = build_env(self._config, 0, training=True)
        rendered = render_rgb(env)
        self._send(
            "opened",
            actions=self._names,
            noop=self._noop,
            shape=list(env.codec.shape),
            dtype=str(env.codec.dtype),
            pixels=env.shows_pixels,
            restorable=env.restorable,
            description=env.description,
            screen=None if rendered is None else list(rendered.shape[:2]),
        )

    def _close(self) -> None:
        self._close_play()
        if self._training:
            self._training.close()
        self._training, self._stored = None, None

    def _close_play(self) -> None:
        for player in self._play.players if self._play else ():
            player.env.close()
        self._play = None
        self._is_playing = self._by_hand = self._shows_saliency = False
        self._held = None

    def _enter(self, facts: dict[str, Any], weights: str | None, parts: list[bytes]) -> None:
        """Restore a stored transition's state, and send what the agent expects; without weights, it is untrained."""
        training = self._training_env
        self._close_play()
        self._stored = stored = decode_transition(facts, parts)
        if not stored.snapshot:
            raise ValueError("it was stored without a snapshot: the environment has no snapshot() and restore()")
        text, is_exact = verified(training, stored, action_name(training, stored.action))
        self._send("verified", text=text, is_exact=is_exact, identity=str(stored.identity))
        player = self._new_player(self._config, weights)
        self._play = Play([player], stored.snapshot, stored.s_tm1)
        self._send_expectation(player, stored)
        self._show(self._play.current)

    def _new_player(self, config: Config, weights: str | None) -> Player:
        """Return a player with these weights; raise ValueError if its environment is another one."""
        assert self._stored is not None
        training = self._training_env
        env = build_env(config, seed_of(config, self._stored.identity), training=False)
        try:
            if env.description != training.description:
                raise ValueError(f"it was trained on {env.description}, this run on {training.description}")
            agent = load_weights(config, env, Path(weights) if weights else None)
        except BaseException:
            env.close()
            raise
        return Player(env, agent, config.evaluation.epsilon, seed_of(config, self._stored.identity, 1))

    def _send_expectation(self, player: Player, stored: StoredTransition) -> None:
        expected = expectation_of(player.agent, player.env.frames)
        saliency = expected.saliency
        is_picture = saliency is not None and saliency.ndim == 2
        parts = [png(_heat(saliency))] if saliency is not None and is_picture else []
        self._send(
            "expectation",
            parts,
            q=expected.q_values,
            greedy=expected.greedy,
            quantiles=expected.quantiles,
            saliency=None if saliency is None or is_picture else saliency.astype(float).tolist(),
            td_error=present_td_error(player.env, player.agent, stored),
        )

    def _compare(self, run: str, weights: str) -> None:
        """Add a second agent, which plays from the same moment in step with the first."""
        play = self._the_play
        assert self._stored is not None
        self._is_playing = False
        other = self._new_player(load_config(RunDirectory(Path(run)).config), weights)
        for player in play.players[1:]:
            player.env.close()
        self._play = Play([play.players[0], other], self._stored.snapshot, self._stored.s_tm1)
        self._show(self._play.current)

    def _try(self) -> None:
        """Take every action once, and send the outcomes."""
        agent = self._the_play.players[0].agent
        assert self._stored is not None
        outcomes = try_every_action(self._training_env, agent, self._stored)
        parts = [png(outcome.picture) for outcome in outcomes]
        self._send("tried", parts, outcomes=[_plain(outcome) for outcome in outcomes])

    # Playing.

    @property
    def _the_play(self) -> Play:
        if self._play is None:
            raise ValueError("No moment is open.")
        return self._play

    @property
    def _fps(self) -> float:
        return frames_per_second(self._the_play.players[0].env)

    def _start(self, speed: str) -> None:
        self._speed = SPEEDS[speed]
        self._is_playing = not self._the_play.current.is_over
        self._due = 0.0

    def _pause(self) -> None:
        self._is_playing = False
        self._send("paused")

    def _drive(self, who: str) -> None:
        """Take over from the agent, or hand back to it."""
        self._by_hand = who == "you"
        self._held = None
        self._due = 0.0

    def _press(self, action: int | None) -> None:
        """Hold an action, None to release it."""
        if action is not None and not 0 <= action < len(self._names):
            raise ValueError(f"there is no action {action}")
        is_new = self._held != action
        self._held = action
        can_step = not self._is_playing and self._by_hand and not self._the_play.current.is_over
        if is_new and can_step and action is not None:
            self._step()  # while it is paused, a key is a single step

    def _step_once(self) -> None:
        self._is_playing = False
        self._step()

    def _step(self) -> None:
        """Take one step in step with all players, and show it."""
        began = time.monotonic()
        action = self._action_by_hand if self._by_hand else None
        if self._by_hand and action is None:
            return
        frame = self._the_play.step(action)
        self._show(frame)
        if frame.is_over:
            self._pause()
        pause = 1 / (self._speed * self._fps) if self._speed else 0.0
        self._due = max(self._due, began - pause) + pause  # without a burst after a slow step

    def _branch(self, frame: int) -> None:
        """Return to an earlier frame, to continue from there in a new branch."""
        self._is_playing = False
        self._show(self._the_play.go_to(frame))

    def _show(self, frame: Frame) -> None:
        """Send a frame: for each player its screen, and the saliency if wanted."""
        parts: list[bytes] = []
        players = []
        for player, shot in zip(self._the_play.players, frame.shots, strict=True):
            pictures = {"screen": shot.screen}
            if self._shows_saliency:
                saliency = saliency_of(player.agent, shot.frames, int(np.argmax(shot.q_values)))
                pictures |= {"saliency": _heat(saliency)} if saliency is not None and saliency.ndim == 2 else {}
            players.append(
                {name: getattr(shot, name) for name in SHOWN}
                | {name: len(parts) + place for place, name in enumerate(pictures)}
            )
            parts += map(png, pictures.values())
        self._send("frame", parts, frame=frame.number, parent=frame.parent, step=frame.step, players=players)

    def _show_saliency(self, on: bool) -> None:
        self._shows_saliency = on
        if not self._is_playing:
            self._show(self._the_play.current)

    def _save(self) -> None:
        """Send the current branch as a video."""
        self._is_playing = False
        path = self._the_play.path()
        branches = [[frame.shots[number] for frame in path] for number in range(len(self._the_play.players))]
        video = record(branches, self._names, self._fps)
        self._send("video", [video], name=f"moment-{self._stored.identity if self._stored else 0}.mp4")


def _heat(saliency: Any) -> Any:
    return (255 * np.sqrt(saliency)).astype(np.uint8)


def _plain(outcome: Outcome) -> dict[str, Any]:
    facts = outcome._asdict()
    del facts["picture"]
    return facts


def main() -> None:
    """Serve the process that started this one."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    reads, writes = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # what an environment prints must not get into the channel
    os.nice(5)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pipe = Pipe(reads, writes)
    try:
        importlib.import_module("dpsr_apex.agent.torch_agent")  # before it is needed: it takes seconds

        pipe.send({"event": "ready"})
        Emulator(pipe).run()
    except BrokenChannel:
        sys.exit(0)
    except Exception as error:
        traceback.print_exc()
        pipe.send({"event": "crashed", "reason": f"{type(error).__name__}: {error}"})
        sys.exit(1)


if __name__ == "__main__":
    main()
