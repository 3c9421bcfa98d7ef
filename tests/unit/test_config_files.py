"""Files and overrides become a configuration layer by layer, and every wrong line is refused with its origin."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsr_apex.config import (
    ROUND_STEPS,
    ActorConfig,
    Config,
    ConfigError,
    EnvConfig,
    EvaluationConfig,
    LearnerConfig,
    ReplayConfig,
    RunConfig,
    SystemConfig,
    validate,
)
from dpsr_apex.config_files import describe_params, dump_config, ensure_same, load_config
from dpsr_apex.formatting import pasteable
from dpsr_apex.imports import CLASS_NAME
from dpsr_apex.schedules import Schedule, constant


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    assert load_config(written(tmp_path, "")) == Config()


def test_later_layers_win(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        base = "released"
        params = "mine"
        [replay]
        capacity = 300
        replace_candidates = 20
        [sets.mine.replay]
        replace_candidates = 30
        recycle_candidates = 5
        [sets.other.replay]
        replace_candidates = 40
        """,
    )
    config = load_config(path, overrides=["replay.recycle_candidates=6"])
    assert config.evaluation.episodes == Config().evaluation.episodes  # said nowhere: the default
    assert config.learner.learning_rate == constant(0.0001)  # the base
    assert config.replay.capacity == 300  # the file, over the base
    assert config.replay.replace_candidates == 30  # the set, over the file
    assert config.replay.recycle_candidates == 6  # the override, over the set
    assert load_config(path, params="other").replay.replace_candidates == 40
    assert load_config(path, base="paper").learner.learning_rate == constant(0.0005)
    assert load_config(path, params="dpsr4").replay.replace_candidates == 256


def test_a_files_own_set_hides_the_shipped_one_of_its_name(tmp_path: Path) -> None:
    path = written(tmp_path, "[sets.dpsr0.replay]\nreplace_candidates = 77")
    assert load_config(path, params="dpsr0").replay.replace_candidates == 77


@pytest.mark.parametrize(
    ("override", "section", "name", "value"),
    [
        ("replay.method=per", "replay", "method", "per"),
        ('replay.method="per"', "replay", "method", "per"),
        (" replay.capacity = 10_000 ", "replay", "capacity", 10_000),
        ("replay.recycle_at_max_priority=true", "replay", "recycle_at_max_priority", True),
        ("learner.discount=0", "learner", "discount", 0.0),
        ("env.wrappers=['a.b:C', 'd:E']", "env", "wrappers", ("a.b:C", "d:E")),
        ("env.wrappers=[]", "env", "wrappers", ()),
        ("learner.hidden=[32, 16]", "learner", "hidden", (32, 16)),
        ("replay.replacing_exponent=1", "replay", "replacing_exponent", constant(1.0)),
        ("actor.exploration={ start = 1, end = 0.5 }", "actor", "exploration", Schedule(1.0, 0.5)),
        ("env.name=my.package:Maze", "env", "name", "my.package:Maze"),
        ("env.name=ALE/Pong-v5", "env", "name", "ALE/Pong-v5"),
        ("env.name=a=b", "env", "name", "a=b"),
        ("env.arguments.depth=7", "env", "arguments", {"depth": 7}),
        ("env.arguments.level=easy", "env", "arguments", {"depth": 10, "level": "easy"}),
        ("run.threads=2", "run", "threads", 2),
        ("run.total_steps=2e5", "run", "total_steps", 200_000),
    ],
)
def test_overrides(override: str, section: str, name: str, value: Any) -> None:
    found = getattr(getattr(load_config("corridor", overrides=[override]), section), name)
    assert found == value
    assert type(found) is type(value)


def test_a_later_override_wins() -> None:
    assert load_config("cartpole", overrides=["run.seed=1", "run.seed=2"]).run.seed == 2


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("replay.capcity=3", "replay.capcity is not a setting; did you mean replay.capacity?"),
        ("capacity=3", "capacity is not a setting; did you mean replay.capacity?"),
        ("replay.discount=0.9", "did you mean learner.discount?"),
        ("reply.method=per", "did you mean replay?"),
        ("env.zz=1", "env.zz is not a setting; env has name, arguments, stack"),
        ("zz=1", "the sections are env, replay, actor, learner, evaluation, run"),
        ("=1", "is not a setting"),
        ("replay=3", "replay must be a table of settings (got 3)"),
        ("replay.capacity=many", "replay.capacity must be an integer (got 'many')"),
        ("replay.capacity=1.5", "replay.capacity must be an integer (got 1.5)"),
        ("replay.capacity=true", "replay.capacity must be an integer (got True)"),
        ("replay.capacity.x=3", "replay.capacity must be an integer (got {'x': 3})"),
        ("replay.capacity=", "replay.capacity must be an integer (got '')"),
        ("replay.recycle_at_max_priority=1", "replay.recycle_at_max_priority must be true or false (got 1)"),
        ("replay.recycle_at_max_priority=True", "replay.recycle_at_max_priority must be true or false (got 'True')"),
        ("learner.discount=true", "learner.discount must be a finite number (got True)"),
        ("learner.discount=nan", "learner.discount must be a finite number (got nan)"),
        ("learner.discount=1" + "0" * 400, "learner.discount must be a finite number (got 1000"),
        ("env.wrappers=a:B", "env.wrappers must be a list of \"package.module:Class\" (got 'a:B')"),
        ("learner.hidden=64", "learner.hidden must be a list of one or more integers (got 64)"),
        ("learner.hidden=[64, 1.5]", "learner.hidden must be a list of one or more integers (got [64, 1.5])"),
        ("env.name=5", "env.name must be a non-empty string (got 5)"),
        ("env.stack=four", "env.stack must be an integer or left out (got 'four')"),
        ("env.arguments.born=1999-01-01", "env.arguments must be a table of strings"),
        ("run.seed=1979-05-27", "run.seed must be an integer (got datetime.date(1979, 5, 27))"),
        ("run.seed=1\nrun.threads=2", "an integer"),
        (
            "actor.exploration={ start = 1.0 }",
            "'actor.exploration = { start = 1.0, end = 0.02, over = 0.1 }' (got { start = 1.0 })",
        ),
        ("actor.exploration={ start = 1, end = 0, until = 5 }", "a finite number, or a schedule such as"),
        ("actor.exploration={ start = true, end = 0 }", "a finite number, or a schedule such as"),
        ("actor.exploration.end=low", "a finite number, or a schedule such as"),
        (
            "replay.method=PER",
            "replay.method must be one of 'dpsr', 'double', 'per', 'per_rank', 'uniform' (got 'PER')",
        ),
        ("replay.capacity=100", "replay.replace_candidates must be at most replay.capacity, which is 100 (got 128)"),
        ("actor.exploration=1.5", "actor.exploration must be between 0 and 1 (got 1.5)"),
        ("learner.hidden=[0]", "learner.hidden[0] must be >= 1 (got 0)"),
    ],
)
def test_a_wrong_override_is_refused(override: str, words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_config("cartpole", overrides=[override])
    assert words in str(refusal.value)
    assert "(from " in str(refusal.value)


@pytest.mark.parametrize("part", ["actor.exploration.over=0.3", "replay.bias_annealing.end=1", "actor.exploration={}"])
def test_a_part_of_a_schedule_is_refused_with_an_override_that_works(part: str) -> None:
    with pytest.raises(ConfigError, match="must be a whole schedule") as refusal:
        load_config("cartpole", overrides=[part])
    (whole,) = re.findall(r"such as '(.+?)'", str(refusal.value))
    key, _, number = part.partition("=")
    section, name, *one = key.split(".")
    schedule = getattr(getattr(load_config("cartpole", overrides=[whole]), section), name)
    assert not one or getattr(schedule, one[0]) == float(number)


def test_an_override_without_a_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="write it as key=value"):
        load_config("cartpole", overrides=["replay.capacity"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[replay", "mine.toml: not valid TOML: "),
        ("[run]\nseed = 1\nseed = 2", "mine.toml: not valid TOML: "),
        ("[replay]\ncapcity = 3", "replay.capcity is not a setting; did you mean replay.capacity? (from "),
        ("[run]\nseed = true\nthreads = 'x'", "run.threads must be an integer or left out (got 'x') (from "),
        ("[run]\nseed = -1", "run.seed must be between 0 and 2147483647 (got -1) (from "),
        ("replay = 3", "replay must be a table of settings (got 3) (from "),
        ("speed = 3", "speed is not a setting; did you mean run.seed? (from "),
        ('base = "papr"', "base must be one of apex, classic, modern, paper, released (got 'papr'); did you mean"),
        ("base = 3", "base must be one of apex, classic, modern, paper, released (got 3)"),
        ('base = "../cartpole"', "base must be one of apex, classic, modern, paper, released"),
        ('params = "best"', "params must be one of dpsr0, dpsr1, dpsr2, dpsr3, dpsr4 (got 'best')"),
        ('params = "tesd"\n[sets.test.run]\nseed = 3', "dpsr4, test (got 'tesd'); did you mean test?"),
        ("sets = 3", "sets must be a table of parameter sets (got 3) (from "),
        ("[sets]\nbest = 3", "mine.toml must be a table of settings (got 3)"),
        ("[sets.unused.replay]\ncapcity = 3", "(from sets.unused of "),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_config(written(tmp_path, text))
    assert words in str(refusal.value)


def test_every_fault_of_a_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_config(written(tmp_path, "[run]\nseed = true\nsped = 1\n[replay]\nmethod = 'x'"))
    assert len(str(refusal.value).splitlines()) == 3


def test_a_fault_names_the_layer_that_it_came_from() -> None:
    with pytest.raises(ConfigError) as refusal:
        load_config("cartpole", overrides=["run.total_steps=500"])
    assert str(refusal.value).startswith(
        "learner.learning_starts must be at most run.total_steps, which is 500 (got 1000) (from "
    )
    assert str(refusal.value).endswith("cartpole.toml)")


def test_a_missing_file_is_reported_with_a_similar_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="dpsr-apex list configs"):
        load_config(tmp_path / "cartpole.toml")
    with pytest.raises(ConfigError, match=r"did you mean cartpole\?"):
        load_config("cartpol")


def test_a_run_directory_is_not_a_config(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(dump_config(Config()))
    with pytest.raises(ConfigError, match=r"is a run directory\. To continue it: dpsr-apex resume"):
        load_config(tmp_path)


@pytest.mark.parametrize("name", ["base/paper", "sets", "../pyproject", "atari", ""])
def test_only_whole_configurations_are_shipped_names(name: str) -> None:
    with pytest.raises(ConfigError, match="neither a file nor one of `dpsr-apex list configs`"):
        load_config(name)


def test_text_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "latin.toml"
    path.write_bytes(b"[env]\nname = '\xe9'")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(path)


def test_a_shipped_name_may_carry_its_suffix() -> None:
    assert load_config("cartpole.toml") == load_config("cartpole")


def test_a_dump_is_plain_toml_with_one_comment_and_no_none() -> None:
    text = dump_config(Config())
    assert text.count("#") == 1
    table = tomllib.loads(text)
    assert table["replay"]["sampling_exponent"] == 0.6
    assert table["replay"]["bias_annealing"] == {"start": 0.4, "end": 1.0, "over": 1.0}
    assert "stack" not in table["env"]
    assert "threads" not in table["run"]


counts = st.integers(1, 10**12)
periods = st.integers(0, 10**12)
units = st.floats(0, 1)
shares = st.floats(0, 1, exclude_min=True)
positives = st.floats(0, exclude_min=True, allow_infinity=False)


def schedules(greatest: float) -> st.SearchStrategy[Schedule]:
    ends = st.floats(0, greatest)
    return ends.map(constant) | st.builds(Schedule, ends, ends, shares)


leaves = st.text() | st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False)
arguments = st.dictionaries(
    st.text(),
    st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)),
    max_size=3,
)
wrappers = st.lists(st.from_regex(CLASS_NAME, fullmatch=True), max_size=3).map(tuple)


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """Any configuration that can be run."""
    batch_size = draw(st.integers(1, 2_000))
    learning_starts = draw(st.integers(batch_size, 10**9))
    capacity = draw(st.integers(max(batch_size, 2), 2**31 - 1))
    return Config(
        env=draw(st.builds(EnvConfig, st.text(min_size=1), arguments, st.none() | st.integers(1, 255), wrappers)),
        replay=draw(
            st.builds(
                ReplayConfig,
                capacity=st.just(capacity),
                sampling_exponent=schedules(5),
                bias_annealing=schedules(1),
                replacing_exponent=schedules(5),
                replace_candidates=st.integers(1, capacity),
                recycle_candidates=st.integers(2, min(capacity, ROUND_STEPS)),
                recycle_period=periods,
                priority_floor=st.floats(1e-50, 1),
                exponent_tolerance=units,
            )
        ),
        actor=draw(st.builds(ActorConfig, schedules(1), counts, st.integers(1, 255))),
        learner=draw(
            st.builds(
                LearnerConfig,
                batch_size=st.just(batch_size),
                learning_rate=positives.map(constant),
                discount=units,
                steps_per_update=counts,
                target_period=counts,
                learning_starts=st.just(learning_starts),
                gradient_clip=positives,
                hidden=st.lists(counts, min_size=1, max_size=4).map(tuple),
                head=counts,
            )
        ),
        evaluation=draw(st.builds(EvaluationConfig, periods, counts, units, counts)),
        run=draw(
            st.builds(
                RunConfig,
                seed=st.integers(0, 2**31 - 1),
                total_steps=st.integers(learning_starts, 10**12),
                log_period=counts,
                checkpoint_period=periods,
                checkpoints_kept=counts,
                threads=st.none() | counts,
            )
        ),
    )


@settings(deadline=None)  # the machine may be busy
@given(config=configs())
def test_a_dump_loads_as_an_equal_configuration(tmp_path_factory: pytest.TempPathFactory, config: Config) -> None:
    validate(config)
    path = tmp_path_factory.getbasetemp() / "round_trip.toml"
    path.write_text(dump_config(config), encoding="utf-8")
    assert load_config(path) == config


def with_actors(actors: int | None) -> Config:
    return Config(system=SystemConfig(actors=actors))


@pytest.mark.parametrize(("kept", "given"), [(None, 3), (2, None), (2, 3), (None, None), (0, 0)])
def test_a_run_may_continue_with_another_number_of_actors(tmp_path: Path, kept: int | None, given: int | None) -> None:
    path = written(tmp_path, dump_config(with_actors(kept)))
    ensure_same(with_actors(given), path)


@pytest.mark.parametrize(("kept", "given"), [(0, 1), (1, 0), (0, None), (None, 0)])
def test_a_single_process_run_continues_as_one(tmp_path: Path, kept: int | None, given: int | None) -> None:
    path = written(tmp_path, dump_config(with_actors(kept)))
    with pytest.raises(ConfigError, match=rf"holds another run, with system\.actors = {kept}\."):
        ensure_same(with_actors(given), path)


@pytest.mark.parametrize(("settings", "again"), [(["run.total_steps=60_000"], " --steps 60000"), (["run.seed=7"], "")])
def test_another_run_is_refused_with_the_command_that_continues_it(
    tmp_path: Path, settings: list[str], again: str
) -> None:
    path = written(tmp_path, dump_config(load_config("cartpole")))
    with pytest.raises(ConfigError) as refusal:
        ensure_same(load_config("cartpole", overrides=settings), path)
    assert str(refusal.value).endswith(f"To continue that run: {pasteable('resume', tmp_path)}{again}")


@pytest.mark.parametrize(
    ("name", "game"), [("pong", "Pong"), ("Pong", "Pong"), ("montezuma_revenge", "MontezumaRevenge")]
)
def test_a_game_without_a_file_has_the_papers_settings_and_its_common_set(name: str, game: str) -> None:
    common = load_config("atari/breakout", params="dpsr3", overrides=[f"env.name={game}"])
    assert load_config(f"atari/{name}") == common
    assert load_config(f"atari/{name}", base="released", params="dpsr1") == load_config(
        "atari/breakout", base="released", params="dpsr1", overrides=[f"env.name={game}"]
    )


def test_a_game_is_found_in_any_spelling() -> None:
    assert load_config("atari/MsPacman") == load_config("atari/ms_pacman")


def test_the_parameter_set_is_described_with_its_origin_and_values() -> None:
    described = describe_params("atari/breakout")
    assert described.startswith("best of ")
    assert described.endswith(
        "breakout.toml (replacing_exponent = 0.1, replace_candidates = 128, recycle_period = 10_000, "
        "recycle_candidates = 64)"
    )
    assert describe_params("atari/pong").startswith("dpsr3 of ")
    assert describe_params("corridor") == ""
