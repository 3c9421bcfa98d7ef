"""The commands that show what a run does and did, and what an environment can."""

from __future__ import annotations

import argparse
from pathlib import Path

from dpsr_apex.cli.arguments import Commands, add_command, fail, natural, positive

COUNT, STEPS = 8, 300  # of `inspect`, where none are given

WATCH_EXAMPLES = """examples:
  dpsr-apex watch runs/cartpole-dpsr-seed0-20260101-120000
"""
INSPECT_EXAMPLES = """examples:
  dpsr-apex inspect runs/breakout                                          tables and a sheet of pictures
  dpsr-apex inspect runs/breakout --enter 8123456 --video out.mp4          play on from that moment
  dpsr-apex inspect runs/breakout --enter 8123456 --policy runs/other      the same with what another run has learnt
"""
REPORT_EXAMPLES = """examples:
  dpsr-apex report runs/cartpole-dpsr-seed0-20260101-120000
  dpsr-apex report runs/cartpole-* --out report
  dpsr-apex report runs/my-experiment
"""
EVAL_EXAMPLES = """examples:
  dpsr-apex eval runs/cartpole-dpsr-seed0-20260101-120000 --episodes 10 --video game.mp4
"""
CHECK_EXAMPLES = """examples:
  dpsr-apex check Breakout CartPole-v1
  dpsr-apex check my_package.my_module:MyEnv
  dpsr-apex check --all
"""


def add_to(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add these commands to the command line."""
    _add_watch(add_command(commands, "watch", "show a run that is going on, from another terminal", WATCH_EXAMPLES))
    _add_eval(add_command(commands, "eval", "play whole games with a run's newest weights", EVAL_EXAMPLES))
    _add_inspect(
        add_command(
            commands, "inspect", "look into a run's replay, and play on from any moment of it", INSPECT_EXAMPLES
        )
    )
    _add_report(add_command(commands, "report", "make one page of curves and tables from runs", REPORT_EXAMPLES))
    _add_check(
        add_command(commands, "check", "prove that environments can be left and re-entered exactly", CHECK_EXAMPLES)
    )


def _add_watch(watch: argparse.ArgumentParser) -> None:
    watch.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    watch.set_defaults(command=_watch)


def _add_inspect(inspect: argparse.ArgumentParser) -> None:
    inspect.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    inspect.add_argument("--count", type=positive, metavar="N", help=f"transitions of each kind (default: {COUNT})")
    inspect.add_argument("--sheet", type=Path, metavar="FILE.png", help="their frames (default: RUN_DIR/replay.png)")
    inspect.add_argument("--checkpoint", type=Path, metavar="DIR", help="another checkpoint than the newest")
    inspect.add_argument("--enter", type=natural, metavar="ID", help="restore this transition's state and play on")
    inspect.add_argument("--steps", type=positive, metavar="N", help=f"to play after --enter (default: {STEPS})")
    inspect.add_argument("--video", type=Path, metavar="FILE.mp4", help="record what follows --enter")
    inspect.add_argument("--policy", type=Path, metavar="RUN_DIR", help="play with another run's newest weights")
    inspect.set_defaults(command=_inspect)


def _add_report(report: argparse.ArgumentParser) -> None:
    report.add_argument("paths", nargs="+", type=Path, metavar="RUN_DIR", help="runs, or folders of runs")
    report.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where the page goes (default: RUN_DIR/report, or ./report for several)",
    )
    report.set_defaults(command=_report)


def _add_eval(evaluation: argparse.ArgumentParser) -> None:
    evaluation.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    evaluation.add_argument("--episodes", type=positive, default=10, metavar="N", help="whole games (default: 10)")
    evaluation.add_argument("--video", type=Path, metavar="FILE.mp4", help="record the games")
    evaluation.set_defaults(command=_eval)


def _add_check(check: argparse.ArgumentParser) -> None:
    check.add_argument(
        "names",
        nargs="*",
        metavar="ENV",
        help="an ALE game, a MinAtar game (MinAtar/Breakout), a Gymnasium id or package.module:Class",
    )
    check.add_argument("--all", action="store_true", help="the paper's 24 games")
    check.add_argument(
        "--moments", type=positive, default=300, metavar="N", help="at least so many of each (default: 300)"
    )
    check.set_defaults(command=_check)


def _watch(given: argparse.Namespace) -> int:
    from dpsr_apex.live.watch import watch_run

    return watch_run(given.run_dir)


def _inspect(given: argparse.Namespace) -> int:
    if given.enter is None:
        if given.steps or given.video or given.policy:
            return fail("--steps, --video and --policy go with --enter ID: which moment is to be played on from?", 2)

        from dpsr_apex.inspection.overview import inspect_run

        return inspect_run(given.run_dir, given.count or COUNT, given.sheet, given.checkpoint)
    if given.count or given.sheet:
        return fail("--count and --sheet go without --enter: they are of the tables, and it shows one moment alone", 2)

    from dpsr_apex.inspection.enter import enter_moment

    steps = given.steps or STEPS
    return enter_moment(given.run_dir, given.enter, steps, given.video, given.policy, given.checkpoint)


def _report(given: argparse.Namespace) -> int:
    from dpsr_apex.report.command import report_runs

    return report_runs(given.paths, given.out)


def _eval(given: argparse.Namespace) -> int:
    from dpsr_apex.run.run_directory import RunDirectory

    RunDirectory.open(given.run_dir)

    from dpsr_apex.run.play import evaluate_run

    return evaluate_run(given.run_dir, given.episodes, given.video)


def _check(given: argparse.Namespace) -> int:
    from dpsr_apex.envs.check import PAPER_GAMES, check_command

    names = [*given.names, *(PAPER_GAMES if given.all else ())]
    if not names:
        return fail("name at least one environment, or --all for the paper's 24 games", 2)
    return check_command(names, given.moments)
