"""Looking into real runs, of one process and of many, and playing on from what they stored."""

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
from dpsr_apex.inspection.film import SEEN
from dpsr_apex.inspection.moments import Moment, moments_in
from dpsr_apex.inspection.opening import Opened, open_run
from dpsr_apex.replay.memory import DpsrReplay
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
    ended = subprocess.run([COMMAND, "train", config, *settings, *options], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    return path


@pytest.fixture(scope="module")
def breakout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("inspect") / "breakout", "breakout_short")


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("inspect") / "cart pole", "cartpole")


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    return lambda: capsys.readouterr().out


def inspect(*arguments: object) -> int:
    return main(["inspect", *map(str, arguments)])


def everything(replay: DpsrReplay) -> list[Moment]:
    return moments_in(replay, np.arange(replay.size))


def identities_in(text: str) -> list[list[int]]:
    """Those of each table, line by line."""
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
    """What the agent sees in one frame of a video: the left half, its enlargement taken back."""
    left: NDArray[np.float64] = frame[:SEEN, :SEEN].astype(np.float64).mean(axis=2).reshape(84, 5, 84, 5)
    return left.mean(axis=1).mean(axis=2)


def frames_of(opened: Opened, moment: Moment) -> NDArray[Any]:
    env = build_env(opened.config, 0, training=True)
    env.close()
    return env.codec.inflate_stack(moment.s_tm1)


def test_tables_name_what_stands_out_and_a_sheet_shows_it(breakout: Path, said: Said) -> None:
    assert inspect(breakout, "--count", "5") == 0
    text = said()
    assert text.startswith(f"Breakout · dpsr · seed 0 · {breakout} · t = 600 · 300 of 300 stored\n")
    replay = open_run(breakout).replay
    moments = everything(replay)
    highest, lowest, oldest, gained = identities_in(text)
    by_priority = sorted(moments, key=lambda moment: (moment.priority, moment.identity))
    assert lowest == [moment.identity for moment in by_priority[:5]]
    assert sorted(moment.priority for moment in moments if moment.identity in highest)[-1] == replay.priorities.max()
    assert oldest == sorted(replay.identities.tolist())[:5]
    recycled = [moment for moment in moments if moment.recycled]
    assert gained == [moment.identity for moment in sorted(recycled, key=lambda moment: -moment.gain)[:5]]
    assert f"recycled: {len(recycled)}, " in text
    assert re.search(r"  (NOOP|FIRE|RIGHT|LEFT) ", text)
    with Image.open(breakout / "replay.png") as sheet:
        assert sheet.size[0] >= 900
    assert sorted(path.name for path in breakout.iterdir() if path.name.startswith(".")) == []


def test_the_last_line_can_be_pasted(cartpole: Path, tmp_path: Path, said: Said) -> None:
    assert inspect(cartpole, "--sheet", tmp_path / "sheet.png") == 0
    (command,) = re.findall(r"To play on from one of them: (.*)", said())
    words = re.sub(r"^\S+", str(COMMAND), command)
    entered = subprocess.run(words, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert (entered.returncode, entered.stderr) == (0, "")
    assert "again gives the stored s′, reward and end, bit for bit" in entered.stdout
    assert [path.suffix for path in sorted(tmp_path.iterdir())] == [".mp4", ".png"]


def test_looking_needs_no_torch(cartpole: Path, tmp_path: Path) -> None:
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
        moment
        for moment in everything(opened.replay)
        if moment.recycled == recycled and len(set(moment.s_tm1)) == 4  # so that a wrong order would be noticed
    ]
    moment = different[len(different) // 2]
    video = tmp_path / "moment.mp4"
    assert inspect(breakout, "--enter", moment.identity, "--steps", "10", "--video", video) == 0
    text = said()
    assert "again gives the stored s′, reward and end, bit for bit" in text
    assert re.search(r"^10 steps: score \+\d", text, re.MULTILINE)
    stored = frames_of(opened, moment).astype(np.float64)
    shown = [seen_in(frame) for frame in video_frames(video)]
    hold = 5  # a third of a second of 15 frames
    for place, frame in enumerate(shown[: 4 * hold]):
        distances = [np.abs(frame - one).mean() for one in stored]
        assert np.abs(frame - stored[place // hold]).max() < 40, place  # a codec's blur, and no other place of a ball
        assert distances[place // hold] < 1.5, place
        assert int(np.argmin(distances)) == place // hold, place
    assert len(shown) == 3 * hold + 15 + 10 + 15


def test_the_same_moment_is_played_on_in_the_same_way(breakout: Path, said: Said) -> None:
    moment = everything(open_run(breakout).replay)[7]
    texts = []
    for _ in range(2):
        assert inspect(breakout, "--enter", moment.identity, "--steps", "60") == 0
        texts.append(said())
    assert texts[0] == texts[1]
    assert " Q " in texts[0]
    assert "stored" in texts[0]


def test_another_runs_policy_plays_if_it_fits(cartpole: Path, breakout: Path, tmp_path: Path, said: Said) -> None:
    other = Path(shutil.copytree(cartpole, tmp_path / "other"))
    identity = everything(open_run(cartpole).replay)[0].identity
    assert inspect(cartpole, "--enter", identity, "--policy", other) == 0
    assert f"played on with the weights of {other} of t = 600" in said()
    assert inspect(cartpole, "--enter", identity, "--policy", breakout) == 2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["--enter", "99999999999999999999"],
            r"is not in the replay at t = 600.*To list those that are there: .*inspect",
        ),
        (["--enter", "0"], "it was replaced, or never was"),
        (["--enter", "IDENTITY", "--video", "game.avi"], r"written as \.mp4"),
        (["--enter", "IDENTITY", "--video", "nowhere/game.mp4"], "nowhere does not exist"),
        (["--enter", "IDENTITY", "--policy", "nowhere"], "is not a run directory"),
        (["--checkpoint", "nowhere"], "is not a checkpoint of this run"),
        (["--sheet", "sheet.jpg"], r"written as \.png"),
        (["--video", "game.mp4"], "go with --enter ID"),
        (["--steps", "5"], "go with --enter ID"),
        (["--enter", "IDENTITY", "--sheet", "sheet.png"], "go without --enter"),
        (["--enter", "IDENTITY", "--count", "3"], "go without --enter"),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_reason(
    arguments: list[str], complaint: str, cartpole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    identity = str(everything(open_run(cartpole).replay)[0].identity)
    assert inspect(cartpole, *(identity if word == "IDENTITY" else word for word in arguments)) == 2
    shown = capsys.readouterr()
    assert re.search(complaint, shown.err)
    assert shown.out == ""


def test_an_environment_without_a_way_back_can_be_looked_at_and_not_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(Path(__file__).with_name("user_tasks.py"), tmp_path / "tasks.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "tasks", raising=False)
    trained(Path("run"), "cartpole", "--set", "env.name=tasks:NoWayBack", "--method", "per")
    assert inspect("run") == 0
    assert "None can be entered: tasks:NoWayBack has no snapshot()" in capsys.readouterr().out
    identity = everything(open_run(Path("run")).replay)[0].identity
    assert inspect("run", "--enter", identity) == 2
    assert "stored without a snapshot" in capsys.readouterr().err


def test_a_run_of_many_processes_is_looked_into_while_it_goes_on_and_entered_afterwards(
    tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "run"
    with training(path, "env.name=CartPole-v1", "run.checkpoint_period=200", steps=1_000_000) as run:
        run.eventually(lambda: any((path / "checkpoints").glob("step_*")))
        assert inspect(path) == 0
        text = said()
        run.end(signal.SIGINT)
    assert re.search(r"saved \d+:\d\d ago, and the run goes on\n", text)
    assert inspect(path) == 0
    text = said()
    assert "the run goes on" not in text
    assert "recycled: " in text
    moment = next(moment for moment in everything(open_run(path).replay) if moment.recycled)
    assert inspect(path, "--enter", moment.identity, "--video", "moment.mp4") == 0
    assert "bit for bit" in said()
    assert len(video_frames(Path("moment.mp4"))) > 50
