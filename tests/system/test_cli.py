"""The command as a user types it: what it says, what it leaves behind, and the exit code it ends with."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dpsr_apex.cli import main
from dpsr_apex.run.checkpoint import list_checkpoints, load_checkpoint, newest_checkpoint
from dpsr_apex.run.metrics import fingerprint, read_metrics

COMMAND = Path(sys.executable).with_name("dpsr-apex")
COMMANDS = ("train", "resume", "actor", "replay", "learner", "evaluator", "rate", "watch", "eval", "check")

WEIGHTS = ("weights/best.safetensors", "weights/last.safetensors")
SMALL = ["--steps=240"] + [
    f"--set={setting}"
    for setting in (
        *("replay.capacity=60", "replay.replace_candidates=16", "replay.recycle_candidates=6"),
        *("replay.recycle_period=25", "learner.learning_starts=40", "learner.batch_size=16", "learner.head=32"),
        *("learner.steps_per_update=4", "learner.device=cpu", "evaluation.episodes=2", "evaluation.max_steps=50"),
        *("run.threads=1", "run.log_period=60", "run.checkpoint_period=100"),
    )
]


def dpsr_apex(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, *arguments], cwd=cwd, capture_output=True, text=True)


def train_small(*arguments: str | Path) -> list[str]:
    return ["train", "cartpole", "--solo", *SMALL, *map(str, arguments)]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is not to be changed; copy it."""
    path = tmp_path_factory.mktemp("finished") / "run"
    ended = dpsr_apex(*train_small("--run-dir", path))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"dpsr-apex resume {path} --steps 1000000" in ended.stdout
    assert "evaluation at t = 240" in ended.stdout
    assert "rounds 7 opened, 7 closed" in ended.stdout
    return path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of a finished run."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's own folder with environments in it, as the current one."""
    shutil.copy(Path(__file__).with_name("user_tasks.py"), tmp_path / "tasks.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "tasks", raising=False)
    return tmp_path


@pytest.mark.parametrize("arguments", [[], *([name] for name in COMMANDS)], ids=lambda given: " ".join(given) or "top")
def test_help_has_an_example_and_needs_no_torch(arguments: list[str]) -> None:
    script = (
        "import sys; sys.modules['torch'] = sys.modules['gymnasium'] = None; "
        f"from dpsr_apex.cli import main; main({[*arguments, '--help']})"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert f"  dpsr-apex {arguments[0] if arguments else 'train'} " in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cartpol"], "did you mean cartpole?"),
        (["cartpole", "--set", "replay.capcity=3"], "did you mean replay.capacity?"),
        (["cartpole", "--set", "replay.capacity=many"], "replay.capacity = 'many': an integer"),
        (["cartpole", "--set", "replay.capacity"], "write it as key=value"),
        (["cartpole", "--set", "replay.replace_candidates=9999"], "at most replay.capacity (5000)"),
        (["cartpole", "--set", "replay.replacing_exponent=-1"], "from 0 to 5"),
        (["cartpole", "--base", "papper"], "did you mean paper?"),
        (["cartpole", "--params", "dpsr9"], "dpsr0, dpsr1"),
        (["cartpole", "--seed", "-1"], "run.seed = -1"),
        (["cartpole", "--steps", "999"], "learner.learning_starts = 1000: at most run.total_steps (999)"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_a_wrong_config_is_refused_in_one_line_before_torch_is_loaded(
    arguments: list[str], said: str, tmp_path: Path
) -> None:
    refused = dpsr_apex("train", "--solo", *arguments, cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stdout == ""
    (line,) = refused.stderr.splitlines()
    assert line.startswith("dpsr-apex: ")
    assert said in line
    assert list(tmp_path.iterdir()) == []


def test_options_that_do_not_exist_are_refused_with_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["train", "cartpole", "--speed"],
        ["eval", "run", "--episodes", "0"],
        ["eval", "run", "--episodes=x"],
        ["train", "cartpole", "--actors", "0"],
        ["train", "cartpole", "--solo", "--actors", "2"],
        ["rate", "run", "--steps-per-update", "-1"],
        ["scale", "run", "--actors", "0"],
        ["scale", "run"],
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
    assert "x is not an integer of at least 1" in capsys.readouterr().err


def test_a_run_directory_holds_everything(finished: Path) -> None:
    for name in ("config.toml", "metrics.jsonl", "evaluations.jsonl", "curve.png", "logs/solo.log", *WEIGHTS):
        assert (finished / name).stat().st_size > 0, name
    assert any((finished / "tensorboard").iterdir())
    assert [load_checkpoint(path).t for path in list_checkpoints(finished / "checkpoints")] == [200, 240]
    assert [row["t"] for row in read_metrics(finished / "metrics.jsonl")] == [60, 120, 180, 240]


def test_a_run_directory_that_exists_is_refused_and_left_as_it_is(finished: Path) -> None:
    before = contents(finished)
    refused = dpsr_apex(*train_small("--run-dir", finished))
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert f"dpsr-apex resume {finished}" in line
    assert contents(finished) == before


def test_the_option_resume_continues_this_very_run_and_no_other(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*train_small("--run-dir", tmp_path / "new", "--resume")]) == 0  # nothing is there: it is started
    shutil.rmtree(run / "checkpoints" / "step_000000000240")
    assert main([*train_small("--run-dir", run, "--resume")]) == 0
    assert "at t = 200" in capsys.readouterr().out
    assert fingerprint(run / "metrics.jsonl") == fingerprint(tmp_path / "new" / "metrics.jsonl")
    before = contents(run)
    assert main([*train_small("--run-dir", run, "--resume", "--seed", "1")]) == 2
    assert "run.seed = 0" in capsys.readouterr().err
    assert contents(run) == before


def test_the_option_resume_starts_over_what_was_killed_before_its_first_checkpoint(run: Path, finished: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    assert main([*train_small("--run-dir", run, "--resume")]) == 0
    assert fingerprint(run / "metrics.jsonl") == fingerprint(finished / "metrics.jsonl")
    assert fingerprint(run / "evaluations.jsonl") == fingerprint(finished / "evaluations.jsonl")


def test_the_option_resume_refuses_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    assert main([*train_small("--run-dir", tmp_path / "file", "--resume")]) == 2
    assert "is a file" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("change", [["rate", "--steps-per-update", "8"], ["scale", "--actors", "8"]])
def test_only_a_run_that_is_going_on_in_processes_can_change_its_rate_or_its_actors(
    change: list[str], finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*change, str(finished)]) == 2
    assert "is not running, or in one process" in capsys.readouterr().err


def test_resume_refuses_what_is_no_run(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        refused = dpsr_apex("resume", path)
        assert refused.returncode == 2
        assert "is not a run directory" in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_resume_refuses_a_run_without_a_checkpoint(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(run / "checkpoints")
    for command in ("resume", "eval"):
        assert main([command, str(run)]) == 2
        assert "has no checkpoint yet" in capsys.readouterr().err


def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_continues(run: Path, finished: Path) -> None:
    newest = list_checkpoints(run / "checkpoints")[-1]
    content = bytearray((newest / "replay.safetensors").read_bytes())
    content[-1] ^= 1
    (newest / "replay.safetensors").write_bytes(content)
    before = contents(run)
    refused = dpsr_apex("resume", run)
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert "the checksum of replay.safetensors is not what manifest.json says" in line
    assert contents(run) == before
    (offered,) = re.findall(r"To go on from there: \S*dpsr-apex (.*)", line)
    assert main(offered.split()) == 0
    assert fingerprint(run / "metrics.jsonl") == fingerprint(finished / "metrics.jsonl")
    whole = newest_checkpoint(run / "checkpoints")
    assert whole is not None
    assert whole.t == 240


def test_going_on_from_an_earlier_checkpoint_forgets_the_later_ones(run: Path) -> None:
    earlier, later = list_checkpoints(run / "checkpoints")
    assert main(["resume", str(run), "--checkpoint", str(earlier), "--steps", "230"]) == 0
    found = newest_checkpoint(run / "checkpoints")
    assert found is not None
    assert found.t == 230
    assert not later.exists()
    assert [row["t"] for row in read_metrics(run / "metrics.jsonl")] == [60, 120, 180, 230]


def test_a_checkpoint_of_another_run_is_refused(run: Path, finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = list_checkpoints(finished / "checkpoints")[0]
    assert main(["resume", str(run), "--checkpoint", str(other)]) == 2
    assert "is not a checkpoint of this run" in capsys.readouterr().err


def test_a_run_can_be_made_longer_and_not_shorter_than_it_is(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resume", str(run), "--steps", "240"]) == 0
    assert main(["resume", str(run), "--steps", "100"]) == 2
    assert "at t = 240 already" in capsys.readouterr().err
    assert main(["resume", str(run), "--steps", "300"]) == 0
    assert [row["t"] for row in read_metrics(run / "evaluations.jsonl")] == [240, 300]
    assert "total_steps = 300" in (run / "config.toml").read_text()


def test_the_config_of_a_run_can_be_run_again_as_it_is(finished: Path, tmp_path: Path) -> None:
    assert main(["train", str(finished / "config.toml"), "--solo", "--run-dir", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again" / "config.toml").read_text() == (finished / "config.toml").read_text()
    assert fingerprint(tmp_path / "again" / "metrics.jsonl") == fingerprint(finished / "metrics.jsonl")


def test_without_a_name_a_run_gets_one_that_tells_what_it_is(workplace: Path) -> None:
    assert main(train_small("--method", "per", "--seed", "3", "--steps", "100")) == 0
    (path,) = (workplace / "runs").iterdir()
    assert path.name.startswith("cartpole-per-seed3-")


def test_eval_prints_every_score_and_films_them(finished: Path, tmp_path: Path) -> None:
    video = tmp_path / "games.mp4"
    shown = dpsr_apex("eval", finished, "--episodes", "3", "--video", video)
    assert (shown.returncode, shown.stderr) == (0, "")
    head, scores, means, filmed = shown.stdout.splitlines()
    assert head == "CartPole-v1, weights of t = 240, 3 games"
    assert len(scores.removeprefix("scores ").split()) == 3
    assert means.startswith("mean ")
    assert "median" in means
    assert filmed == f"video {video}"
    assert video.read_bytes()[4:8] == b"ftyp"


@pytest.mark.parametrize(
    ("video", "said"), [("games.avi", "written as .mp4"), ("nowhere/games.mp4", "nowhere does not exist")]
)
def test_a_video_that_cannot_be_written_is_refused(
    video: str, said: str, finished: Path, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(workplace.iterdir())
    assert main(["eval", str(finished), "--video", video]) == 2
    assert said in capsys.readouterr().err
    assert sorted(workplace.iterdir()) == before


def test_check_proves_what_can_be_re_entered() -> None:
    shown = dpsr_apex("check", "CartPole-v1", "Corridor", "--moments", "30")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "2 of 2 can be left and re-entered" in shown.stdout


def test_check_finds_a_snapshot_that_does_not_restore(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert workplace == Path.cwd()
    assert main(["check", "tasks:Forgetful", "tasks:Line", "--moments", "30"]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "1 steps after a restore" in shown
    assert "1 of 2" in shown
    assert main(["check"]) == 2


def test_a_users_own_environment_is_trained_with_recycling(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (workplace / "line.toml").write_text('[env]\nname = "tasks:Line"\narguments = { length = 12 }\n')
    ended = dpsr_apex("train", "line.toml", "--solo", *SMALL, "--run-dir", "run", cwd=workplace)
    assert (ended.returncode, ended.stderr) == (0, "")
    last = read_metrics(workplace / "run" / "metrics.jsonl")[-1]
    assert (last["rounds_closed"], last["episodes"]) == (7, 20)
    assert main(["eval", "run", "--video", "line.mp4"]) == 2
    assert "tasks:Line shows no pictures" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "method", "said"),
    [
        ("Forgetful", "dpsr", "cannot be left and re-entered (Step(reward="),
        ("NoWayBack", "dpsr", "it has no snapshot() and restore()"),
        ("NanReward", "dpsr", "its reward was nan"),
        ("NanReward", "per", "its reward was nan"),
        ("Colourful", "per", "its observations are Box(0, 255, (8, 8, 3), uint8)"),
        ("OneButton", "dpsr", "it has one action"),
        ("Nothing", "per", "tasks has no Nothing"),
    ],
)
def test_an_environment_that_cannot_be_used_is_refused_and_nothing_is_written(
    name: str, method: str, said: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = train_small("--set", f"env.name=tasks:{name}", "--method", method, "--run-dir", "run")
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"dpsr-apex: tasks:{name}: ")
    assert said in error
    assert "Traceback" not in error
    assert not (workplace / "run").exists()


def test_an_environment_without_a_way_back_works_where_nothing_is_recycled(workplace: Path) -> None:
    assert main(train_small("--set", "env.name=tasks:NoWayBack", "--method", "per", "--run-dir", "run")) == 0
    assert main(["resume", "run", "--steps", "300"]) == 0
    assert read_metrics(workplace / "run" / "metrics.jsonl")[-1]["t"] == 300


def test_a_reward_that_turns_bad_late_ends_the_run_with_a_reason_and_whole_files(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(train_small("--set", "env.name=tasks:LateNan", "--run-dir", "run")) == 2
    error = capsys.readouterr().err
    assert "its reward was nan" in error
    assert "Traceback" not in error
    assert "its reward was nan" in (workplace / "run" / "logs" / "solo.log").read_text()
    found = newest_checkpoint(workplace / "run" / "checkpoints")
    assert found is not None
    assert found.t == 200
    assert [row["t"] for row in read_metrics(workplace / "run" / "metrics.jsonl")] == [60, 120, 180]


class Started:
    """The real command, running."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said: list[str] = []

    def await_line(self, start: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)
            if line.startswith(start):
                return
        raise AssertionError(f"ended without saying {start!r}: {''.join(self.said)}")

    def end(self, number: signal.Signals) -> tuple[int, str, str]:
        """Signal it once: its exit code and all that it said."""
        self.process.send_signal(number)
        out, error = self.process.communicate(timeout=120)
        return self.process.returncode, "".join(self.said) + out, error


@contextlib.contextmanager
def started(arguments: Sequence[str | Path], cwd: Path) -> Iterator[Started]:
    process = subprocess.Popen(
        [COMMAND, *arguments], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield Started(process)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_ends_and_the_run_can_go_on(number: signal.Signals, code: int, workplace: Path) -> None:
    arguments = train_small("--steps", "1000000", "--set", "run.checkpoint_period=0", "--run-dir", "run")
    with started(arguments, workplace) as command:
        command.await_line("t 60/")
        ended, said, error = command.end(number)
    assert (ended, error) == (code, "")
    found = newest_checkpoint(workplace / "run" / "checkpoints")
    assert found is not None
    assert found.t >= 60
    assert f"Stopped at t = {found.t:,}. To go on: " in said
    assert "dpsr-apex resume run" in said
    assert (workplace / "run" / "curve.png").exists()
    assert main(["resume", "run", "--steps", str(found.t + 90)]) == 0
    assert read_metrics(workplace / "run" / "metrics.jsonl")[-1]["t"] == found.t + 90


def test_a_signal_in_an_evaluation_ends_it_and_saves(workplace: Path) -> None:
    arguments = train_small(
        *("--set", "env.name=tasks:Endless", "--set", "evaluation.max_steps=1000000000"),
        *("--set", "evaluation.period=50", "--run-dir", "run"),
    )
    with started(arguments, workplace) as command:
        command.await_line("a long game")
        ended, said, error = command.end(signal.SIGINT)
    assert (ended, error) == (130, "")
    assert "Stopped at t = 50" in said
    found = newest_checkpoint(workplace / "run" / "checkpoints")
    assert found is not None
    assert found.t == 50
    assert read_metrics(workplace / "run" / "evaluations.jsonl") == []


def test_a_second_signal_ends_at_once_whatever_hangs(workplace: Path) -> None:
    with started(
        train_small("--set", "env.name=tasks:Hanging", "--run-dir", "run", "--steps", "1000000"), workplace
    ) as command:
        command.await_line("t 60/")
        (workplace / "hang").touch()
        command.await_line("hanging")
        while command.process.poll() is None:  # two that come together count as one
            command.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                command.process.wait(timeout=0.2)
        assert command.process.returncode == 130


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_a_full_disk_does_not_end_a_run(small_disk: Path, tmp_path: Path) -> None:
    run = small_disk / "run"
    with started(train_small("--run-dir", run, "--steps", "1000000"), tmp_path) as command:
        command.await_line("t 240/")
        fill(small_disk / "filler")
        command.await_line("The checkpoint at t = ")
        assert "No space left on device" in command.said[-1]
        assert "the last good one is kept" in command.said[-1]
        command.await_line("t ")
        found = newest_checkpoint(run / "checkpoints")
        assert found is not None
        (small_disk / "filler").unlink()
        ended, _, error = command.end(signal.SIGINT)
    assert (ended, error) == (130, "")
    later = newest_checkpoint(run / "checkpoints")
    assert later is not None
    assert later.t > found.t
    assert main(["resume", str(run), "--steps", str(later.t + 50)]) == 0


def test_a_log_that_cannot_be_written_does_not_end_a_run(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (run / "logs" / "solo.log").unlink()
    (run / "logs" / "solo.log").symlink_to("/dev/full")
    assert main(["resume", str(run), "--steps", "300"]) == 0
    assert capfd.readouterr().err == ""
