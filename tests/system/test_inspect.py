"""Inspecting real single-process and multi-process runs, and continuing from stored transitions."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from imageio_ffmpeg import get_ffmpeg_exe
from numpy.typing import NDArray
from PIL import Image

from dpsr_apex.cli import main
from dpsr_apex.inspection.opening import OpenedRun, checkpoint_age, open_run
from dpsr_apex.inspection.play_video import OBSERVATION_SIDE
from dpsr_apex.inspection.stored import StoredTransition, find_transitions
from dpsr_apex.inspection.verify import Verification, verify_transition
from dpsr_apex.replay.replay import Replay
from dpsr_apex.roles.build import build_env
from tests.system.runs import training

COMMAND = Path(sys.executable).with_name("dpsr-apex")

SMALL = (
    *("replay.capacity=300", "replay.replace_candidates=16", "replay.recycle_candidates=8", "replay.recycle_period=40"),
    *("learner.learning_starts=200", "learner.batch_size=16", "learner.steps_per_update=40", "learner.device=cpu"),
    *("evaluation.episodes=1", "evaluation.max_steps=20", "run.threads=1", "run.checkpoint_period=0"),
)

Said = Callable[[], str]


def trained(path: Path, config: str, *arguments: str) -> Path:
    options = ["--solo", "--steps", "600", "--run-dir", str(path), *arguments]
    settings = [f"--set={setting}" for setting in SMALL]
    assert main(["train", config, *settings, *options]) == 0
    return path


@pytest.fixture(scope="module")
def breakout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("inspect") / "breakout", "atari/breakout", "--base=released")


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("inspect") / "cart pole", "cartpole", "--base=paper")


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    return lambda: capsys.readouterr().out


def inspect(*arguments: object) -> int:
    return main(["inspect", *map(str, arguments)])


def everything(replay: Replay) -> list[StoredTransition]:
    return find_transitions(replay, replay.identities)


def identities_in(text: str) -> list[list[int]]:
    """Return the identities in each table, line by line."""
    tables = re.split(r"\n\n", text)[1:]
    return [[int(name) for name in re.findall(r"^ *(\d+) ", table, re.MULTILINE)] for table in tables]


def video_frames(path: Path) -> list[NDArray[np.uint8]]:
    size = re.compile(r"Stream #0:0.* (\d+)x(\d+)[ ,]")
    command = [get_ffmpeg_exe(), "-i", path, "-fps_mode", "passthrough", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    decoded = subprocess.run(command, capture_output=True, check=True)
    found = size.search(decoded.stderr.decode())
    assert found
    width, height = map(int, found.groups())
    return list(np.frombuffer(decoded.stdout, np.uint8).reshape(-1, height, width, 3))


def seen_in(frame: NDArray[np.uint8]) -> Any:
    """Return the observation in one frame of a video: the left half, scaled down to 84 x 84."""
    left: NDArray[np.float64] = (
        frame[:OBSERVATION_SIDE, :OBSERVATION_SIDE].astype(np.float64).mean(axis=2).reshape(84, 5, 84, 5)
    )
    return left.mean(axis=1).mean(axis=2)


def verified(opened: OpenedRun, transition: StoredTransition) -> Verification:
    """Repeat the stored action from the restored state."""
    env = build_env(opened.config, 0, training=True)
    try:
        return verify_transition(env, transition)
    finally:
        env.close()


REPRODUCED = Verification(("s′", "reward", "terminal"), (), 1)


def frames_of(opened: OpenedRun, transition: StoredTransition) -> NDArray[Any]:
    env = build_env(opened.config, 0, training=True)
    env.close()
    return env.codec.decompress_stack(transition.s_tm1)


def test_tables_list_extreme_transitions_and_a_sheet_shows_them(breakout: Path, said: Said) -> None:
    assert inspect(breakout, "--count", "5") == 0
    text = said()
    assert text.startswith(f"Breakout · dpsr · seed 0 · {breakout} · t = 600 · 300 of 300 stored\n")
    replay = open_run(breakout).replay
    transitions = everything(replay)
    highest, lowest, oldest, gained = identities_in(text)
    by_priority = sorted(transitions, key=lambda transition: (transition.priority, transition.identity))
    assert lowest == [transition.identity for transition in by_priority[:5]]
    assert (
        sorted(transition.priority for transition in transitions if transition.identity in highest)[-1]
        == replay.priorities.max()
    )
    assert oldest == sorted(replay.identities.tolist())[:5]
    recycled = [transition for transition in transitions if transition.recycled]
    assert gained == [
        transition.identity for transition in sorted(recycled, key=lambda transition: -transition.gain)[:5]
    ]
    assert re.search(rf"recycled\D+{len(recycled)}\b", text)
    assert re.search(r"  (NOOP|FIRE|RIGHT|LEFT) ", text)
    with Image.open(breakout / "replay.png") as sheet:
        assert sheet.size[0] >= 900
    assert sorted(path.name for path in breakout.iterdir() if path.name.startswith(".")) == []


def test_the_command_in_the_output_can_be_pasted(cartpole: Path, tmp_path: Path, said: Said) -> None:
    assert inspect(cartpole, "--sheet", tmp_path / "sheet.png") == 0
    text = said()
    assert ": dpsr-apex train cartpole --set=" in text, "the provenance"
    (arguments,) = re.findall(r"\S+ (inspect .*--enter.*)", text)
    entered = subprocess.run(f"{COMMAND} {arguments}", shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert (entered.returncode, entered.stderr) == (0, ""), "exit code 1 would mean that the outcome differs"
    assert [path.suffix for path in sorted(tmp_path.iterdir())] == [".mp4", ".png"]


def test_inspecting_needs_no_torch(cartpole: Path, tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['torch'] = None; from dpsr_apex.cli import main; "
        f"sys.exit(main(['inspect', {str(cartpole)!r}, '--sheet', {str(tmp_path / 'sheet.png')!r}]))"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert (tmp_path / "sheet.png").exists()


@pytest.mark.parametrize("recycled", [False, True])
def test_a_video_begins_with_the_stored_frames(recycled: bool, breakout: Path, tmp_path: Path, said: Said) -> None:
    opened = open_run(breakout)
    different = [
        transition
        for transition in everything(opened.replay)
        if transition.recycled == recycled and len(set(transition.s_tm1)) == 4  # so that a wrong order would be noticed
    ]
    transition = different[len(different) // 2]
    video = tmp_path / "transition.mp4"
    assert inspect(breakout, "--enter", transition.identity, "--steps", "10", "--video", video) == 0
    assert re.search(r"^10 steps\b", said(), re.MULTILINE)
    assert verified(opened, transition) == REPRODUCED
    stored = frames_of(opened, transition).astype(np.float64)
    shown = [seen_in(frame) for frame in video_frames(video)]
    hold = 5  # a third of a second of 15 frames
    for place, frame in enumerate(shown[: 4 * hold]):
        distances = [np.abs(frame - one).mean() for one in stored]
        assert np.abs(frame - stored[place // hold]).max() < 40, place  # a codec's blur, and no other place of a ball
        assert distances[place // hold] < 1.5, place
        assert int(np.argmin(distances)) == place // hold, place
    assert len(shown) == 3 * hold + 15 + 10 + 15


def test_continuing_from_a_transition_is_reproducible(breakout: Path, said: Said) -> None:
    transition = everything(open_run(breakout).replay)[7]
    texts = []
    for _ in range(2):
        assert inspect(breakout, "--enter", transition.identity, "--steps", "60") == 0
        texts.append(said())
    assert texts[0] == texts[1]
    assert " Q " in texts[0]
    assert "stored" in texts[0]


def test_the_policy_of_another_run_can_continue_in_the_same_environment_only(
    cartpole: Path, breakout: Path, tmp_path: Path, said: Said
) -> None:
    other = Path(shutil.copytree(cartpole, tmp_path / "other"))
    identity = everything(open_run(cartpole).replay)[0].identity
    assert inspect(cartpole, "--enter", identity, "--policy", other) == 0
    assert str(other) in said()
    assert inspect(cartpole, "--enter", identity, "--policy", breakout) == 2


@pytest.mark.parametrize(
    ("arguments", "named"),  # what the message must name
    [
        (["--enter", "99999999999999999999"], r"99999999999999999999.*t = 600.*inspect"),
        (["--enter", "0"], r"transition 0\b.*t = 600"),
        (["--enter", "IDENTITY", "--video", "game.avi"], r"\.mp4"),
        (["--enter", "IDENTITY", "--video", "nowhere/game.mp4"], "nowhere"),
        (["--enter", "IDENTITY", "--policy", "nowhere"], "nowhere"),
        (["--checkpoint", "nowhere"], "nowhere"),
        (["--sheet", "sheet.jpg"], r"\.png"),
        (["--video", "game.mp4"], "--enter"),
        (["--steps", "5"], "--enter"),
        (["--enter", "IDENTITY", "--sheet", "sheet.png"], "--sheet.*--enter"),
        (["--enter", "IDENTITY", "--count", "3"], "--count.*--enter"),
    ],
)
def test_invalid_arguments_are_refused_by_name(
    arguments: list[str], named: str, cartpole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    identity = str(everything(open_run(cartpole).replay)[0].identity)
    assert inspect(cartpole, *(identity if word == "IDENTITY" else word for word in arguments)) == 2
    shown = capsys.readouterr()
    assert re.search(named, shown.err)
    assert shown.out == ""


def test_a_run_without_snapshots_can_be_inspected_but_not_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(Path(__file__).with_name("user_tasks.py"), tmp_path / "tasks.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "tasks", raising=False)
    trained(Path("run"), "cartpole", "--base=paper", "--set", "env.name=tasks:NoSnapshot", "--method", "per")
    assert inspect("run") == 0
    assert re.search(r"tasks:NoSnapshot .*snapshot\(\)", capsys.readouterr().out)
    identity = everything(open_run(Path("run")).replay)[0].identity
    assert inspect("run", "--enter", identity) == 2
    assert re.search(rf"transition {identity}\b.*snapshot", capsys.readouterr().err)


@pytest.mark.slow
def test_a_distributed_run_is_inspected_while_it_runs_and_entered_afterwards(
    tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "run"
    with training(path, "env.name=CartPole-v1", "run.checkpoint_period=200", steps=1_000_000) as run:
        run.eventually(lambda: any((path / "checkpoints").glob("step_*")))
        assert inspect(path) == 0
        assert re.search(r"saved \d+:\d\d:\d\d ago", said())
        assert checkpoint_age(open_run(path)) is not None
        run.end(signal.SIGINT)
    assert inspect(path) == 0
    assert not re.search(r"saved \S+ ago", said())
    opened = open_run(path)
    assert checkpoint_age(opened) is None
    transition = next(transition for transition in everything(opened.replay) if transition.recycled)
    assert inspect(path, "--enter", transition.identity, "--video", "transition.mp4") == 0
    assert verified(opened, transition) == REPRODUCED
    assert len(video_frames(Path("transition.mp4"))) > 50
