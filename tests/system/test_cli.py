"""The command as a user types it: its output, the files that it writes, and its exit code."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from dpsr_apex.cli import COMMANDS, main
from dpsr_apex.files import read_rows
from dpsr_apex.record.checkpoint import list_checkpoints, load_checkpoint, newest_checkpoint
from dpsr_apex.record.ending import Ending, read_ending
from dpsr_apex.record.metrics import fingerprint
from dpsr_apex.record.provenance import read_provenance
from dpsr_apex.record.run_directory import RunDirectory
from tests.system.runs import eventually
from tests.system.terminals import in_terminal

COMMAND = Path(sys.executable).with_name("dpsr-apex")
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
    return ["train", "cartpole", "--base=paper", "--solo", *SMALL, *map(str, arguments)]


def contents(folder: Path) -> dict[str, bytes]:
    """Return the content of every file but the locks, which name the process that held them last."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock" and path.name != "lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; tests must not change it."""
    path = tmp_path_factory.mktemp("finished") / "run"
    ended = dpsr_apex(*train_small("--run-dir", path))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[-1].endswith(f"dpsr-apex resume {path} --steps 480"), "twice as long"
    assert read_ending(RunDirectory(path)) == Ending("finished", 0, 240)
    assert [row["t"] for row in read_rows(path / "evaluations.jsonl")] == [240]
    last = read_rows(path / "metrics.jsonl")[-1]
    assert (last["rounds_opened"], last["rounds_closed"]) == (7, 7)
    return path


def test_in_a_terminal_the_command_that_continues_a_run_is_below_its_last_screen(tmp_path: Path) -> None:
    with in_terminal(COMMAND, *train_small("--run-dir", tmp_path / "run")) as terminal:
        text = terminal.await_text("--steps 480")
        assert text.index("rate limiter") < text.index("Score:") < text.index("Done. To train longer:")
        assert text.rstrip().endswith("--steps 480")


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of a finished run."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder with environments, as the current directory."""
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
    ("arguments", "named"),  # the keys and values that the message must name
    [
        (["cartpol"], ("cartpol ", "cartpole?")),
        (["cartpole", "--set", "replay.capcity=3"], ("replay.capcity", "replay.capacity?")),
        (["cartpole", "--set", "replay.capacity=many"], ("replay.capacity", "'many'")),
        (["cartpole", "--set", "replay.capacity"], ("--set replay.capacity:", "key=value")),
        (
            ["cartpole", "--set", "replay.replace_candidates=99999"],
            ("replay.replace_candidates", "99999", "replay.capacity", "25000"),
        ),
        (["cartpole", "--set", "replay.replacing_exponent=-1"], ("replay.replacing_exponent", "-1.0", "0 and 5")),
        (["cartpole", "--base", "papper"], ("'papper'", "paper?")),
        (["cartpole", "--params", "dpsr9"], ("'dpsr9'", "dpsr0, dpsr1")),
        (["cartpole", "--seed", "-1"], ("run.seed", "-1", "0 and 2147483647")),
        (["cartpole", "--steps", "999"], ("learner.learning_starts", "1000", "run.total_steps", "999")),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_a_wrong_config_is_refused_in_one_line_before_torch_is_loaded(
    arguments: list[str], named: tuple[str, ...], tmp_path: Path
) -> None:
    refused = dpsr_apex("train", "--solo", *arguments, cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stdout == ""
    (line,) = refused.stderr.splitlines()
    assert line.startswith("dpsr-apex: ")
    assert [part for part in named if part not in line] == []
    assert list(tmp_path.iterdir()) == []


def test_wrong_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
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
    assert "argument --episodes: must be an integer >= 1 (got x)" in capsys.readouterr().err


def test_a_command_whose_reader_has_ended_is_silent() -> None:
    with subprocess.Popen([COMMAND, "list", "envs"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()  # before anything is printed
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_a_run_directory_contains_all_records(finished: Path) -> None:
    for name in ("config.toml", "metrics.jsonl", "evaluations.jsonl", "curve.png", "logs/solo.log", *WEIGHTS):
        assert (finished / name).stat().st_size > 0, name
    assert any((finished / "tensorboard").iterdir())
    assert [load_checkpoint(path).t for path in list_checkpoints(finished / "checkpoints")] == [200, 240]
    assert [row["t"] for row in read_rows(finished / "metrics.jsonl")] == [60, 120, 180, 240]
    (part,) = read_provenance(RunDirectory(finished))
    assert part.command == shlex.join(["dpsr-apex", *train_small("--run-dir", finished)])
    assert (part.t, part.outcome, part.ended_t) == (0, "finished", 240)


def test_a_run_directory_that_exists_is_refused_and_not_changed(finished: Path) -> None:
    before = contents(finished)
    refused = dpsr_apex(*train_small("--run-dir", finished))
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert f"dpsr-apex resume {finished}" in line
    assert contents(finished) == before


def test_the_option_resume_continues_a_run_with_the_same_config_only(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*train_small("--run-dir", tmp_path / "new", "--resume")]) == 0  # a new run is started
    saved = run / "checkpoints" / "step_000000000200"
    written_at = saved.stat().st_mtime_ns
    shutil.rmtree(run / "checkpoints" / "step_000000000240")
    assert main([*train_small("--run-dir", run, "--resume")]) == 0
    assert saved.stat().st_mtime_ns == written_at, "it continued from there"
    assert fingerprint(run / "metrics.jsonl") == fingerprint(tmp_path / "new" / "metrics.jsonl")
    first, second = read_provenance(RunDirectory(run))
    assert (first.t, second.t, second.outcome) == (0, 200, "finished")
    assert "--resume" in second.command
    before = contents(run)
    assert main([*train_small("--run-dir", run, "--resume", "--seed", "1")]) == 2
    assert "run.seed" in capsys.readouterr().err
    assert contents(run) == before


def test_the_option_resume_restarts_a_run_that_was_killed_before_its_first_checkpoint(
    run: Path, finished: Path
) -> None:
    shutil.rmtree(run / "checkpoints")
    assert main([*train_small("--run-dir", run, "--resume")]) == 0
    assert fingerprint(run / "metrics.jsonl") == fingerprint(finished / "metrics.jsonl")
    assert fingerprint(run / "evaluations.jsonl") == fingerprint(finished / "evaluations.jsonl")


def test_the_option_resume_refuses_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    assert main([*train_small("--run-dir", tmp_path / "file", "--resume")]) == 2
    assert str(tmp_path / "file") in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("change", [["rate", "--steps-per-update", "8"], ["scale", "--actors", "8"]])
def test_only_a_running_distributed_run_can_change_its_rate_or_its_actors(
    change: list[str], finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*change, str(finished)]) == 2
    assert str(finished) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "where"),
    [("Raising", 'return table["missing"]'), ("RaisingRestore", 'raise RuntimeError("no such state")')],
)
def test_an_exception_in_a_users_environment_is_shown_with_its_traceback(
    name: str, where: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(train_small("--set", f"env.name=tasks:{name}", "--run-dir", "run")) == 2
    error = capsys.readouterr().err
    assert where in error
    assert error.splitlines()[-1].startswith(f"dpsr-apex: tasks:{name}: it ")
    assert not (workplace / "run").exists()
    assert main(["check", f"tasks:{name}"]) == 1
    assert where in capsys.readouterr().out


def test_resume_refuses_a_folder_that_is_not_a_run(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        refused = dpsr_apex("resume", path)
        assert refused.returncode == 2
        (line,) = refused.stderr.splitlines()
        assert str(path) in line
    assert list(tmp_path.iterdir()) == []


def test_resume_refuses_a_run_without_a_checkpoint(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(run / "checkpoints")
    for command in ("resume", "eval"):
        assert main([command, str(run)]) == 2
        assert str(run) in capsys.readouterr().err


def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_continues(run: Path, finished: Path) -> None:
    newest = list_checkpoints(run / "checkpoints")[-1]
    content = bytearray((newest / "replay.safetensors").read_bytes())
    content[-1] ^= 1
    (newest / "replay.safetensors").write_bytes(content)
    before = contents(run)
    refused = dpsr_apex("resume", run, "--steps", "250")
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert newest.name in line
    assert "replay.safetensors" in line
    assert contents(run) == before
    (offered,) = re.findall(r"dpsr-apex (resume .*)", line)
    assert main(offered.split()) == 0
    assert fingerprint(run / "metrics.jsonl") == fingerprint(finished / "metrics.jsonl")
    whole = newest_checkpoint(run / "checkpoints")
    assert whole is not None
    assert whole.t == 240


def test_resuming_from_an_earlier_checkpoint_deletes_the_later_ones(run: Path) -> None:
    earlier, later = list_checkpoints(run / "checkpoints")
    assert main(["resume", str(run), "--checkpoint", str(earlier), "--steps", "230"]) == 0
    found = newest_checkpoint(run / "checkpoints")
    assert found is not None
    assert found.t == 230
    assert not later.exists()
    assert [row["t"] for row in read_rows(run / "metrics.jsonl")] == [60, 120, 180, 230]


def test_a_checkpoint_of_another_run_is_refused(run: Path, finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = list_checkpoints(finished / "checkpoints")[0]
    assert main(["resume", str(run), "--checkpoint", str(other)]) == 2
    assert str(other) in capsys.readouterr().err


def test_a_run_can_be_made_longer_but_not_shorter_than_its_checkpoint(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["resume", str(run), "--steps", "240"]) == 0
    assert main(["resume", str(run), "--steps", "100"]) == 2
    error = capsys.readouterr().err
    assert [part for part in ("run.total_steps", "100", "240") if part not in error] == []
    assert main(["resume", str(run), "--steps", "300"]) == 0
    assert [row["t"] for row in read_rows(run / "evaluations.jsonl")] == [240, 300]
    assert "total_steps = 300" in (run / "config.toml").read_text()


def test_a_finished_run_is_not_started_again(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(run)
    assert main(["resume", str(run)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(f" resume {run} --steps 480")
    assert contents(run) == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("place", ["--solo", "--actors=1"])
def test_a_device_that_is_missing_is_refused_before_a_run_directory_exists(place: str, tmp_path: Path) -> None:
    assert main(["train", "cartpole", place, "--device=cuda", "--run-dir", str(tmp_path / "run")]) == 2
    assert not (tmp_path / "run").exists()


def test_the_config_of_a_run_can_be_run_again(finished: Path, tmp_path: Path) -> None:
    assert main(["train", str(finished / "config.toml"), "--solo", "--run-dir", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again" / "config.toml").read_text() == (finished / "config.toml").read_text()
    assert fingerprint(tmp_path / "again" / "metrics.jsonl") == fingerprint(finished / "metrics.jsonl")


def test_the_default_name_of_a_run_contains_config_method_and_seed(workplace: Path) -> None:
    assert main(train_small("--method", "per", "--seed", "3", "--steps", "100")) == 0
    (path,) = (workplace / "runs").iterdir()
    assert path.name.startswith("cartpole-per-seed3-")


def test_a_run_shows_its_score_beside_random_play_and_records_a_video(tmp_path: Path) -> None:
    wanted = ["--set=evaluation.random_episodes=3", "--set=evaluation.video=true"]
    ended = dpsr_apex(*train_small("--run-dir", tmp_path / "run", *wanted))
    assert (ended.returncode, ended.stderr) == (0, "")
    (random_play,) = read_rows(tmp_path / "run" / "random_play.json")
    assert random_play["games"] == 3
    assert f"(random play: {random_play['mean']:.3g})" in ended.stdout
    assert (tmp_path / "run" / "video.mp4").read_bytes()[4:8] == b"ftyp"
    assert str(tmp_path / "run" / "video.mp4") in ended.stdout


def test_eval_prints_every_score_and_records_a_video(finished: Path, tmp_path: Path) -> None:
    video = tmp_path / "games.mp4"
    shown = dpsr_apex("eval", finished, "--episodes", "3", "--video", video)
    assert (shown.returncode, shown.stderr) == (0, "")
    head, *lines, filmed = shown.stdout.splitlines()
    assert {"CartPole-v1", "240", "3"} <= set(re.findall(r"[\w-]+", head))
    scores, means = ([float(figure) for figure in re.findall(r"\d[\d.]*", line)] for line in lines)
    assert len(scores) == 3
    assert means == pytest.approx([sum(scores) / 3, sorted(scores)[1]], abs=0.01), "mean and median"
    assert str(video) in filmed
    assert video.read_bytes()[4:8] == b"ftyp"


def test_eval_plays_the_chosen_weights_with_a_seed_and_prints_json(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def played(*options: str) -> dict[str, Any]:
        assert main(["eval", str(finished), "--episodes", "3", "--json", *options]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    log = tmp_path / "episodes.jsonl"
    newest = played("--log", str(log))
    assert (newest["t"], newest["games"], newest["seed"]) == (240, 3, 0)
    assert [(row["score"], row["steps"]) for row in read_rows(log)] == list(
        zip(newest["scores"], newest["steps"], strict=True)
    )
    last = played("--weights", "last")
    assert last["scores"] == newest["scores"] == played("--weights", "best")["scores"]  # of the only evaluation
    assert played("--seed", "7")["scores"] == played("--seed", "7", "--weights", "last")["scores"] != last["scores"]
    file = played("--weights", str(finished / WEIGHTS[0]))
    assert (Path(file["weights"]), file["t"]) == (finished / WEIGHTS[0], None)
    assert main(["eval", str(finished), "--weights", str(tmp_path / "none.safetensors")]) == 2
    assert "none.safetensors" in capsys.readouterr().err


@pytest.mark.parametrize(("video", "named"), [("games.avi", ".mp4"), ("nowhere/games.mp4", "nowhere")])
def test_a_video_that_cannot_be_written_is_refused(
    video: str, named: str, finished: Path, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(workplace.iterdir())
    assert main(["eval", str(finished), "--video", video]) == 2
    assert named in capsys.readouterr().err
    assert sorted(workplace.iterdir()) == before


def test_check_accepts_environments_that_are_restored_exactly() -> None:
    shown = dpsr_apex("check", "CartPole-v1", "Corridor", "--moments", "30")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "2 of 2" in shown.stdout


def test_check_finds_a_snapshot_that_does_not_restore(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert workplace == Path.cwd()
    assert main(["check", "tasks:Forgetful", "tasks:Line", "--moments", "30"]) == 1
    shown = capsys.readouterr().out
    assert "tasks:Forgetful" in shown
    assert "1 of 2" in shown
    assert main(["check"]) == 2


def test_a_users_own_environment_is_trained_with_recycling(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (workplace / "line.toml").write_text('[env]\nname = "tasks:Line"\narguments = { length = 12 }\n')
    ended = dpsr_apex("train", "line.toml", "--solo", *SMALL, "--run-dir", "run", cwd=workplace)
    assert (ended.returncode, ended.stderr) == (0, "")
    last = read_rows(workplace / "run" / "metrics.jsonl")[-1]
    assert (last["rounds_closed"], last["episodes"]) == (7, 20)
    assert main(["eval", "run", "--video", "line.mp4"]) == 2
    assert "tasks:Line" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "method", "named"),
    [
        ("Forgetful", "dpsr", "Step(reward="),
        ("Unrepeatable", "dpsr", "replaying its history led to another state"),
        ("NanReward", "dpsr", "reward is nan"),
        ("NanReward", "per", "reward is nan"),
        ("Colourful", "per", "Box(0, 255, (8, 8, 3), uint8)"),
        ("OneButton", "dpsr", "action"),
        ("Nothing", "per", "Nothing"),
    ],
)
def test_an_environment_that_cannot_be_used_is_refused_and_nothing_is_written(
    name: str, method: str, named: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = train_small("--set", f"env.name=tasks:{name}", "--method", method, "--run-dir", "run")
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"dpsr-apex: tasks:{name}: ")
    assert named in error
    assert "Traceback" not in error
    assert not (workplace / "run").exists()


def test_an_environment_without_snapshots_is_recycled_by_its_history(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrapped = ("--set", "env.name=tasks:make_line", "--set", "env.wrappers=['gymnasium.wrappers:FlattenObservation']")
    assert main(train_small(*wrapped, "--method", "dpsr", "--run-dir", "run")) == 0
    assert "Restores replay the history: " in capsys.readouterr().out
    last = read_rows(workplace / "run" / "metrics.jsonl")[-1]
    assert last["rounds_closed"] > 0
    assert last["recycled"] > 0


def test_an_environment_without_snapshots_works_without_recycling(workplace: Path) -> None:
    assert main(train_small("--set", "env.name=tasks:NoSnapshot", "--method", "per", "--run-dir", "run")) == 0
    assert main(["resume", "run", "--steps", "300"]) == 0
    assert read_rows(workplace / "run" / "metrics.jsonl")[-1]["t"] == 300


def test_a_reward_that_becomes_nan_ends_the_run_with_a_reason_and_complete_records(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(train_small("--set", "env.name=tasks:LateNan", "--steps", "500", "--run-dir", "run")) == 2
    assert "Traceback" not in capsys.readouterr().err
    ending = read_ending(RunDirectory(workplace / "run"))
    assert ending is not None
    assert ending[:4] == ("failed", 2, 300, "solo")
    assert "tasks:LateNan" in ending.cause
    assert "nan" in ending.cause
    found = newest_checkpoint(workplace / "run" / "checkpoints")
    assert found is not None
    assert found.t == 300
    assert [row["t"] for row in read_rows(workplace / "run" / "metrics.jsonl")] == [60, 120, 180, 240, 300]


def test_an_exception_in_the_middle_of_a_run_tells_where_its_log_is_and_how_to_continue(workplace: Path) -> None:
    for saves, told in ((100, "To continue from t = 300: dpsr-apex resume late"), (0, "Nothing was saved.")):
        late = ("--set", "env.name=tasks:LateError", "--steps", "500", "--set", f"run.checkpoint_period={saves}")
        with pytest.raises(ZeroDivisionError) as raised:
            main(train_small(*late, "--method", "per", "--run-dir", "late"))
        assert raised.value.__notes__ == [f"The run has failed; its log is late/logs/solo.log. {told}"]
        assert "ZeroDivisionError" in (workplace / "late" / "logs" / "solo.log").read_text()
        shutil.rmtree(workplace / "late")


class Started:
    """The real command, running."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said: list[str] = []

    def await_line(self, part: str) -> None:
        """Wait until it has printed a line that contains `part`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)
            if part in line:
                return
        raise AssertionError(f"ended without printing {part!r}: {''.join(self.said)}")

    def await_t(self, run: Path, t: int) -> None:
        """Wait until the row of clock t or a later one is written."""
        self.eventually(lambda: any(row["t"] >= t for row in read_rows(run / "metrics.jsonl")))

    def eventually(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition is true; fail as soon as the command has ended."""

        def runs_and() -> bool:
            assert self.process.poll() is None, self.process.communicate()
            return condition()

        eventually(runs_and)

    def end(self, number: signal.Signals) -> tuple[int, str, str]:
        """Send it a signal once; return its exit code and its output."""
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
def test_a_signal_saves_and_ends_and_the_run_can_be_resumed(number: signal.Signals, code: int, workplace: Path) -> None:
    arguments = train_small("--steps", "1000000", "--set", "run.checkpoint_period=0", "--run-dir", "run")
    with started(arguments, workplace) as command:
        command.await_t(workplace / "run", 60)
        assert read_ending(RunDirectory(workplace / "run")) is None
        ended, said, error = command.end(number)
    assert (ended, error) == (code, "")
    found = newest_checkpoint(workplace / "run" / "checkpoints")
    assert found is not None
    assert found.t >= 60
    assert read_ending(RunDirectory(workplace / "run")) == Ending("stopped", code, found.t)
    assert "dpsr-apex resume run" in said, "the command that continues it"
    assert (workplace / "run" / "curve.png").exists()
    assert main(["resume", "run", "--steps", str(found.t + 90)]) == 0
    assert read_ending(RunDirectory(workplace / "run")) == Ending("finished", 0, found.t + 90)
    assert read_rows(workplace / "run" / "metrics.jsonl")[-1]["t"] == found.t + 90


@pytest.mark.slow
def test_a_signal_in_an_evaluation_ends_it_and_saves(workplace: Path) -> None:
    arguments = train_small(
        *("--set", "env.name=tasks:Endless", "--set", "evaluation.max_steps=1000000000"),
        *("--set", "evaluation.period=50", "--run-dir", "run"),
    )
    with started(arguments, workplace) as command:
        command.eventually((workplace / "long_episode").exists)
        ended, _, error = command.end(signal.SIGINT)
    assert (ended, error) == (130, "")
    assert read_ending(RunDirectory(workplace / "run")) == Ending("stopped", 130, 50)
    found = newest_checkpoint(workplace / "run" / "checkpoints")
    assert found is not None
    assert found.t == 50
    assert read_rows(workplace / "run" / "evaluations.jsonl") == []


@pytest.mark.slow
def test_a_second_signal_ends_a_hanging_run_at_once(workplace: Path) -> None:
    with started(
        train_small("--set", "env.name=tasks:Hanging", "--run-dir", "run", "--steps", "1000000"), workplace
    ) as command:
        command.await_t(workplace / "run", 60)
        (workplace / "hang").touch()
        command.eventually((workplace / "hanging").exists)
        while command.process.poll() is None:  # two signals that arrive together count as one
            command.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                command.process.wait(timeout=0.2)
        assert command.process.returncode == 130
    assert read_ending(RunDirectory(workplace / "run")) is None


def fill(path: Path) -> None:
    """Write to this file until the disk is full."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


@pytest.mark.slow
def test_a_full_disk_does_not_end_a_run(small_disk: Path, tmp_path: Path) -> None:
    run = small_disk / "run"
    with started(train_small("--run-dir", run, "--steps", "1000000"), tmp_path) as command:
        command.await_t(run, 240)
        fill(small_disk / "filler")
        command.await_line(os.strerror(errno.ENOSPC))
        command.await_line("t ")  # the row of a later step
        found = newest_checkpoint(run / "checkpoints")
        assert found is not None
        (small_disk / "filler").unlink()
        ended, _, error = command.end(signal.SIGINT)
    assert (ended, error) == (130, "")
    later = newest_checkpoint(run / "checkpoints")
    assert later is not None
    assert later.t > found.t
    assert main(["resume", str(run), "--steps", str(later.t + 50)]) == 0


@pytest.mark.slow
def test_a_run_whose_directory_is_removed_ends_and_says_why(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with started(train_small("--run-dir", run, "--steps", "1000000"), tmp_path) as command:
        command.await_t(run, 240)
        run.rename(tmp_path / "elsewhere")
        said, error = command.process.communicate(timeout=120)
    assert command.process.returncode == 1
    assert error.splitlines()[-1].startswith(f"dpsr-apex: {run} was removed")
    assert "To continue" not in said
    assert newest_checkpoint(tmp_path / "elsewhere" / "checkpoints") is not None


def test_a_log_that_cannot_be_written_does_not_end_a_run(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (run / "logs" / "solo.log").unlink()
    (run / "logs" / "solo.log").symlink_to("/dev/full")
    assert main(["resume", str(run), "--steps", "300"]) == 0
    assert capfd.readouterr().err == ""
