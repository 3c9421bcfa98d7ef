"""The explorer: how soon a replay of a million transitions is shown, and how much a watched run is slowed down.

    python -m benchmarks.explorer views       needs Chromium and playwright
    python -m benchmarks.explorer watching

`make bench-explorer` runs both; they are not part of `make bench`, because they need a browser. `views` makes a run of
Breakout whose checkpoint holds a million transitions: some that an actor has really played, copied. A browser opens its
map, then moments from it, and draws in software, without a graphics card: the times are measured inside the page, from
a navigation or a click until the picture is drawn. The map has two times: of the first view, which has a part of the
points, and of all points; plotly.js draws as many in a page that has loaded already. `watching` trains on Breakout on
all cores, and is watched in every second period by what an open page of the run and an open map that follows request:
the news every second, and the whole map every eight seconds. Wall time, except for CPU time per transition.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Page, sync_playwright

from benchmarks.measure import Comparison, Report, at_most, cpu_of, spread
from benchmarks.memory import make_actor
from benchmarks.whole_system import ROLES, cpu_by_role, stats_of, training
from dpsr_apex.config_files import load_config
from dpsr_apex.record.checkpoint import save_checkpoint
from dpsr_apex.record.run_directory import RunDirectory, write_config
from dpsr_apex.replay.replay import Replay
from dpsr_apex.replay.transitions import concatenate, pack, unpack
from dpsr_apex.roles.build import build_agent
from dpsr_apex.state import State

TRANSITIONS = 1_000_000
PLAYED = 5_000  # transitions that are really played, and copied
OVERRIDES = ("replay.method=double", "actor.exploration=1.0", "learner.device=cpu")
VIEWS, MOMENTS = 7, 15
FIRST_VIEW, FIRST_FRAME = 1_000.0, 300.0  # goals, in milliseconds
LEAST_SPEED = 0.95  # goal: of a watched run, as a share of the unwatched one
FIRST, WHOLE, AGAIN, BY_PLOTLY, CLICK = (
    *("map, first view", "map, all points", "map, first view again", "as many points by plotly.js"),
    "click to first frame",
)
SPEED, CPU, CORES = ("speed", "cpu per transition", "cores of the explorer")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((found for name in BROWSERS if (found := shutil.which(name))), None)
SWITCHES = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
# In every page: when the first view and all of the map were drawn, when something was clicked, and when the next frame
# of a moment was drawn.
OBSERVER = """
new MutationObserver(changes => {
  for (const { attributeName } of changes) {
    if (attributeName === "data-map-milliseconds") window.mapAt = performance.now();
    if (attributeName === "data-whole-map-milliseconds") window.wholeAt = performance.now();
    if (attributeName === "data-frames-shown") window.frameAt ??= performance.now();
  }
}).observe(document, { attributes: true, subtree: true });
addEventListener("pointerup", () => { window.clickedAt = performance.now(); window.frameAt = null; }, true);
"""

# As many points by plotly.js, from loading it until they are drawn: what the map would be without a drawing of its own.
PLOTLY = """
async count => {
  const began = performance.now();
  await new Promise((done, failed) => document.head.append(Object.assign(
    document.createElement("script"), { src: "/static/plotly.js", onload: done, onerror: failed })));
  const page = document.getElementById("page"), kinds = ["#8b95a7", "#e8890c", "#2b9a4b", "#d6336c"];
  page.replaceChildren();
  const x = Float32Array.from({ length: count }, (_, row) => row), y = x.map(() => Math.exp(2 * Math.random() - 3));
  const marker = { size: 2, color: Array.from(x, (_, row) => kinds[row % 4]) };
  const layout = { yaxis: { type: "log" }, height: 560 };
  await Plotly.newPlot(page, [{ type: "scattergl", mode: "markers", x, y, marker }], layout);
  await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
  return performance.now() - began;
}
"""

PERIODS, SECONDS = 12, 20.0  # of each kind; per period
MAP_EVERY = 8.0  # seconds, as the page does


def make_run(path: Path, transitions: int = TRANSITIONS, played: int = PLAYED) -> RunDirectory:
    """Make a run whose checkpoint holds this number of transitions, and the weights of an untrained agent.

    The first `played` ones are really played, the others are copies.
    """
    config = load_config("atari/breakout", overrides=(*OVERRIDES, f"replay.capacity={transitions}"))
    actor = make_actor(config)
    inserts = [actor.step() for _ in range(played)]
    packed = pack(concatenate([insert.transitions for insert in inserts if insert]))
    rng = np.random.default_rng(0)
    replay = Replay(config.replay, config.run.total_steps, rng)
    while replay.t < transitions:
        rows = unpack(packed).rows(0, min(transitions - replay.t, played))
        replay.insert(rows, rng.lognormal(-3.0, 2.0, len(rows)))
    run = RunDirectory.create(path)
    write_config(config, run)
    facts, arrays = replay.save()
    parts = {
        "replay": State({"replay": facts}, arrays),
        "learner": State({}, build_agent(config, actor.envs[0], seed=0).save()),
    }
    save_checkpoint(run.checkpoints, replay.t, parts, keep=1)
    return run


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, int]]:
    """Serve the runs in a folder; yield the address with the token, and the process id."""
    command = [sys.executable, "-m", "dpsr_apex.cli", "ui", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found is not None, "the explorer did not start"
            yield found[0], server.pid
        finally:
            server.terminate()


# First views.


def measure_views(folder: Path) -> dict[str, list[float]]:
    """Return times in milliseconds: of the map with an idle server, and from a click to the first frame."""
    run = make_run(folder / "breakout")
    size = sum(file.stat().st_size for file in run.checkpoints.rglob("*"))
    print(f"{TRANSITIONS:,} transitions, {size / 1e6:,.0f} MB")
    times: dict[str, list[float]] = {view: [] for view in (FIRST, WHOLE, AGAIN, BY_PLOTLY, CLICK)}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*SWITCHES])
        for _ in range(VIEWS):
            with serving(folder) as (address, _), closing(browser.new_page()) as page:
                page.set_default_timeout(300_000)
                page.add_init_script(OBSERVER)
                page.goto(address)
                page.get_by_text("stopped").or_(page.get_by_text("killed")).first.wait_for()
                first, whole = open_map(page, address)
                again, _ = open_map(page, address)
                for name, milliseconds in ((FIRST, first), (WHOLE, whole), (AGAIN, again)):
                    times[name].append(milliseconds)
                with closing(browser.new_context(bypass_csp=True)) as context:  # plotly.js evaluates text
                    times[BY_PLOTLY].append(draw_by_plotly(context.new_page(), address))
        with serving(folder) as (address, _), closing(browser.new_page()) as page:
            page.set_default_timeout(300_000)
            page.add_init_script(OBSERVER)
            page.goto(address)
            open_map(page, address)
            page.locator(".chip", has_text="FIRE").first.wait_for(state="attached")  # the environment is described
            times[CLICK] = [open_moment(page, number) for number in range(MOMENTS)]
        browser.close()
    return times


def open_map(page: Page, address: str) -> tuple[float, float]:
    """Open the map; return the milliseconds from the navigation until a part and until all of its points are drawn."""
    page.goto(f"{address.partition('/?')[0]}/run/breakout/map")
    wait_until(page, "window.wholeAt")
    return float(page.evaluate("window.mapAt")), float(page.evaluate("window.wholeAt"))


def draw_by_plotly(page: Page, address: str) -> float:
    """Return the milliseconds until plotly.js has drawn as many points."""
    page.set_default_timeout(300_000)
    page.goto(address)
    page.locator("main h1").wait_for()
    return float(page.evaluate(PLOTLY, TRANSITIONS))


def wait_until(page: Page, condition: str) -> None:
    """Wait for a condition in JavaScript, evaluated from outside: the page itself may not evaluate text."""
    while not page.evaluate(condition):
        page.evaluate("new Promise(requestAnimationFrame)")


def open_moment(page: Page, number: int) -> float:
    """Open a moment by a click on the map, and go back; return the milliseconds from the click to the first frame."""
    page.wait_for_selector("html[data-whole-map-milliseconds]")
    box = page.locator("canvas.over").bounding_box()
    assert box is not None
    x, y = box["x"] + 200 + 40 * number, box["y"] + 180
    page.mouse.move(x, y)
    wait_until(page, "document.querySelector('.tip img')?.naturalWidth > 100")
    page.mouse.down()
    page.mouse.up()
    wait_until(page, "window.frameAt")
    milliseconds = page.evaluate("window.frameAt - window.clickedAt")
    page.evaluate("delete document.documentElement.dataset.wholeMapMilliseconds")
    page.go_back()
    return float(milliseconds)


# A watched run.


class Watcher:
    """Requests what the open pages of a run request, until it is told to stop."""

    def __init__(self, address: str, run: str) -> None:
        self._base = f"{address.partition('/?')[0]}/api/run/{run}"
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._read_news, self._read_maps)]
        self.maps = self.news = 0

    def __enter__(self) -> Watcher:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _read_news(self) -> None:
        with urllib.request.urlopen(f"{self._base}/live") as stream:
            while not self._stop.is_set():
                self.news += stream.readline().startswith(b"data")

    def _read_maps(self) -> None:
        while not self._stop.is_set():
            with urllib.request.urlopen(f"{self._base}/map?at=live") as answer:
                self.maps += len(answer.read()) > 0
            self._stop.wait(MAP_EVERY)


def measure_watching() -> dict[str, list[float]]:
    """Return speeds, the ratios of a watched period to the unwatched one beside it, and the explorer's CPU time."""
    found: dict[str, list[float]] = {name: [] for name in ("watched", "unwatched", SPEED, CPU, CORES)}
    with training() as (run, supervisor), serving(run.path.parent) as (address, server):
        measure_period(run, supervisor)
        for pair in range(PERIODS):
            measured: dict[bool, tuple[float, float]] = {}
            for is_watched in (pair % 2 == 0, pair % 2 == 1):  # alternately first, so that a trend cancels out
                if not is_watched:
                    measured[False] = measure_period(run, supervisor)
                    continue
                before, began = cpu_of(server), time.perf_counter()
                with Watcher(address, run.path.name) as watcher:
                    measured[True] = measure_period(run, supervisor)
                found[CORES].append((cpu_of(server) - before) / (time.perf_counter() - began))
                assert watcher.maps
                assert watcher.news
            found["watched"].append(measured[True][0])
            found["unwatched"].append(measured[False][0])
            found[SPEED].append(measured[True][0] / measured[False][0])
            found[CPU].append(measured[True][1] / measured[False][1])
    return found


def measure_period(run: RunDirectory, supervisor: int) -> tuple[float, float]:
    """Return transitions per second, and CPU seconds of the whole run per transition."""
    before, cpu, began = stats_of(run).t, sum(cpu_by_role(supervisor).values()), time.perf_counter()
    time.sleep(SECONDS)
    steps, seconds = stats_of(run).t - before, time.perf_counter() - began
    return steps / seconds, (sum(cpu_by_role(supervisor).values()) - cpu) / steps


def compare_views(times: dict[str, list[float]]) -> Iterator[Comparison]:
    """Yield the times of a replay of a million transitions beside their limits, or beside those of plotly.js."""
    replay = f"the explorer, N = {TRANSITIONS:,}"
    yield at_most(f"{replay}: from opening the map to the first view (wall time)", "ms", times[FIRST], FIRST_VIEW)
    yield Comparison(
        work=f"{replay}: from opening the map until all points are drawn (wall time)",
        baseline="as many points by plotly.js, in a page that has loaded",
        unit="ms",
        ours=spread(times[WHOLE]),
        peer=spread(times[BY_PLOTLY]),
        ratio=spread([theirs / ours for ours, theirs in zip(times[WHOLE], times[BY_PLOTLY], strict=True)]),
        goal=None,
    )
    yield at_most(f"{replay}: from a click to the first frame (wall time)", "ms", times[CLICK], FIRST_FRAME)


def compare_speeds(found: dict[str, list[float]]) -> Comparison:
    """Return the speed of a watched run beside the unwatched one."""
    return Comparison(
        work="the explorer: Breakout on all cores while a page and a map follow it (wall time)",
        baseline="the run when nobody watches",
        unit="steps/s",
        ours=spread(found["watched"]),
        peer=spread(found["unwatched"]),
        ratio=spread(found[SPEED]),
        goal=LEAST_SPEED,
    )


def show(report: Report, title: str, unit: str, found: dict[str, list[float]], digits: int) -> None:
    """Print medians with quartiles, and keep them for the report."""
    spreads = {name: spread(values) for name, values in found.items()}
    report.figures |= {name: values._asdict() | {"unit": unit, "all": found[name]} for name, values in spreads.items()}
    report.table(title, ("", unit), [[name, values.show(digits)] for name, values in spreads.items()])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("what", choices=("views", "watching"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to this file")
    given: Any = parser.parse_args(arguments)
    report = Report(f"explorer_{given.what}")
    if given.what == "views":
        with tempfile.TemporaryDirectory() as folder:
            times = measure_views(Path(folder))
        show(report, f"Replay of {TRANSITIONS:,} transitions", "milliseconds", times, 0)
        for comparison in compare_views(times):
            report.compare(comparison)
    else:
        found = measure_watching()
        title = f"Breakout on all cores ({', '.join(ROLES)}), {PERIODS} pairs of {SECONDS:.0f} s"
        show(report, title, "transitions/s; watched to unwatched; cores", found, 3)
        report.compare(compare_speeds(found))
    return report.finish(given.json)


if __name__ == "__main__":
    sys.exit(main())
