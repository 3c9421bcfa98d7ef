"""The explorer in a real browser: a visitor opens a live run, looks into its replay, and plays on from a moment.

The run is of MinAtar's Freeway, whose episodes last 2,500 steps whatever the agent does.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dpsr_apex.record.moments import read_moments
from tests.system.browsers import CHROMIUM, SWITCHES
from tests.system.runs import Run, eventually, last_saved, training

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

SETTINGS = (
    *("env.name=MinAtar/Freeway", "replay.capacity=200_000", "learner.steps_per_update=40"),
    *("run.checkpoint_period=3000", "run.checkpoints_kept=10", "run.log_period=100"),
)
PATIENCE = 240.0  # seconds for something to appear on a busy machine
FAILURE = Path(tempfile.gettempdir()) / "explorer-failure.png"  # how the page looked when a test failed
PHONE, DESKTOP = (390, 844), (1280, 900)  # CSS pixels
NEAR = 9  # pixels around the pointer in which a point is found
LARGE = 150_000  # transitions, of which a part is shown at first
EARLY = 2_000  # steps of an episode, after which enough are left to play

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run that continues for longer than the tests, and has saved a checkpoint."""
    folder = tmp_path_factory.mktemp("explored") / "runs"
    folder.mkdir()
    with training(folder / "freeway", *SETTINGS, steps=10_000_000, config="minatar/breakout") as run:
        run.eventually(lambda: last_saved(run.directory))
        for process in run.processes():
            os.setpriority(os.PRIO_PROCESS, process.pid, 19)  # the browser and the explorer first
        yield run


@pytest.fixture(scope="module")
def address(live: Run) -> Iterator[str]:
    """The address that a server for the folder of this run has printed."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    from benchmarks.explorer import serving

    with serving(live.directory.path.parent) as (address, _):
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*SWITCHES])
        yield browser
        browser.close()


@contextmanager
def visiting(
    browser: Browser, size: tuple[int, int], *, touches: bool = False, refused: str | None = None
) -> Iterator[Page]:
    """Open a page that reports no error in its console until the visitor leaves, except those that begin so."""
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, has_touch=touches)
    context.set_default_timeout(1000 * PATIENCE)
    page, errors = context.new_page(), []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    try:
        yield page
    except BaseException:
        page.screenshot(path=FAILURE, full_page=True)
        raise
    assert [error for error in errors if refused is None or not error.startswith(refused)] == []
    context.close()


def wait_until(page: Page, condition: str) -> None:
    """Wait for a condition in JavaScript, which is evaluated from outside: the page itself may not evaluate text."""
    deadline = time.monotonic() + PATIENCE
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.evaluate("new Promise(requestAnimationFrame)")


def fits(page: Page) -> bool:
    """Whether nothing is wider than the window."""
    return bool(page.evaluate("document.scrollingElement.scrollWidth <= innerWidth"))


def point_at_a_moment(page: Page) -> None:
    """Move the pointer over the map until one is shown whose episode does not end soon, with its filmstrip."""
    page.wait_for_selector("html[data-map-milliseconds]")
    page.locator("details.pick .chip", has_text="down").wait_for(state="attached")  # what is added last
    box = page.locator("canvas.over").bounding_box()
    assert box is not None
    for y in range(60, int(box["height"]) - 60, 2 * NEAR):
        for x in range(80, int(box["width"]) - 40, 2 * NEAR):
            page.mouse.move(box["x"] + x, box["y"] + y)
            page.evaluate("new Promise(requestAnimationFrame)")
            step = re.search(r"step ([\d,]+) of its episode", page.locator(".tip").text_content() or "")
            if page.locator(".tip").is_visible() and step and int(step[1].replace(",", "")) < EARLY:
                wait_until(page, "document.querySelector('.tip img')?.naturalWidth > 100")
                return
    pytest.fail("there is no point on the map")


def steps_shown(page: Page) -> list[int]:
    """The step that is shown, and the last one of its branch."""
    return [int(number) for number in page.locator(".timeline .figure").inner_text().split(" / ")]


def await_step(page: Page, least: int) -> None:
    wait_until(page, f"Number(document.querySelector('.timeline .figure').textContent.split(' / ')[1]) >= {least}")


def await_place(page: Page, place: str) -> None:
    wait_until(page, f"document.querySelector('.timeline .figure').textContent === '{place}'")


def show_step(page: Page, step: int) -> None:
    page.get_by_label("Frame", exact=True).fill(str(step))


def open_a_moment(page: Page, address: str) -> None:
    """Go from the table of runs to a moment of the live run, and wait for its first frame."""
    page.goto(address)
    page.get_by_role("link", name="freeway", exact=True).click()
    page.locator(".state[data-state=running]").wait_for()
    page.locator(".plot .main-svg").locator("visible=true").first.wait_for()
    assert fits(page)
    page.get_by_role("link", name="Replay map").click()
    point_at_a_moment(page)
    assert fits(page)
    page.mouse.down()
    page.mouse.up()
    page.locator(".play-controls:not(.waiting)").wait_for()
    assert "/moment/" in page.url


def test_a_visitor_opens_a_live_run_steps_into_a_moment_and_plays_on(
    browser: Browser, address: str, live: Run, tmp_path: Path
) -> None:
    with visiting(browser, DESKTOP) as page:
        change_the_rate(page, address, live)
        open_a_moment(page, address)
        assert "bit for bit" in page.locator(".verified").inner_text()
        page.locator("button.try.stored").wait_for()
        assert page.locator("button.try").count() == 3
        play_with_the_agent(page)
        take_over_and_hand_back(page)
        branch(page)
        play_beside_another_agent(page)
        save_a_video(page, tmp_path)
        star_and_export(page, tmp_path)
        assert fits(page)
    read = read_moments(tmp_path / "moments.safetensors")
    assert [fact.note for fact in read.facts] == ["crossing ✓"]
    assert live.stats().t > 0


def change_the_rate(page: Page, address: str, live: Run) -> None:
    wanted = live.stats().rate.steps_per_update + 10
    page.goto(address)
    page.get_by_role("link", name="freeway", exact=True).click()
    page.get_by_label("Transitions per update").fill(str(wanted))
    page.locator("label", has_text="Steps per update").get_by_role("button", name="Set").click()
    live.eventually(lambda: live.stats().rate.steps_per_update == wanted)


def play_with_the_agent(page: Page) -> None:
    page.get_by_role("button", name="max", exact=True).click()
    page.get_by_role("button", name="Play on", exact=True).click()
    await_step(page, 50)
    page.get_by_role("button", name="Pause").click()
    assert "by agent" in page.locator(".caption").inner_text()


def take_over_and_hand_back(page: Page) -> None:
    page.get_by_role("button", name="You", exact=True).click()
    show_step(page, 50)
    for step in range(51, 61):  # while it is paused, a key is a step
        page.keyboard.press("ArrowUp")
        await_place(page, f"{step} / {step}")
    assert "up by you" in page.locator(".caption").inner_text()
    page.get_by_role("button", name="Agent", exact=True).click()
    page.get_by_role("button", name="Step", exact=True).click()
    await_step(page, 61)
    assert "by agent" in page.locator(".caption").inner_text()


def take_over_by_touch(page: Page) -> None:
    page.get_by_role("button", name="You", exact=True).tap()
    show_step(page, 50)
    for step in range(51, 61):
        page.locator("button.key", has_text="up").tap()
        await_place(page, f"{step} / {step}")
    assert "up by you" in page.locator(".caption").inner_text()
    page.get_by_role("button", name="Agent", exact=True).tap()


def branch(page: Page) -> None:
    show_step(page, 20)
    page.get_by_role("button", name="Continue from this frame").click()
    await_place(page, "20 / 20")
    page.get_by_role("button", name="Step", exact=True).click()
    await_place(page, "21 / 21")
    assert page.locator(".branches .chip").count() == 3  # from step 20, from step 50, and the first one


def play_beside_another_agent(page: Page) -> None:
    page.get_by_label("Compare with").select_option(index=1)
    page.locator(".stage[data-players='2']").wait_for()
    page.get_by_role("button", name="Step", exact=True).click()
    await_step(page, 1)
    assert page.locator(".player .caption").count() == 2


def save_a_video(page: Page, folder: Path) -> None:
    with page.expect_download() as video:
        page.get_by_role("button", name="Save mp4").click()
    video.value.save_as(folder / "play.mp4")
    assert (folder / "play.mp4").read_bytes()[4:8] == b"ftyp"


def star_and_export(page: Page, folder: Path) -> None:
    """Star the moment with a note, and export it as a file of starting states and as a page with the map."""
    page.get_by_role("button", name="Star", exact=True).click()
    page.get_by_role("button", name="Starred").wait_for()
    page.get_by_label("Note").fill("crossing ✓")
    page.get_by_role("button", name="Save note").click()
    page.get_by_text("The note is saved.").wait_for()
    page.get_by_role("link", name="Stars", exact=True).click()
    for button, file in (("Export starting states", "moments.safetensors"), ("Export page", "page.html")):
        with page.expect_download() as exported:
            page.get_by_role("button", name=button).click()
        exported.value.save_as(folder / file)
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto((folder / "page.html").as_uri())
    page.get_by_text("crossing ✓").wait_for()
    assert page.locator("canvas").count() == 3
    assert {url.partition(":")[0] for url in requested} <= {"file", "data", "blob"}


def test_the_explorer_can_be_used_on_a_phone(browser: Browser, address: str, tmp_path: Path) -> None:
    with visiting(browser, PHONE, touches=True) as page:
        open_a_moment(page, address)
        page.locator("button.try").nth(2).wait_for()
        play_with_the_agent(page)
        take_over_by_touch(page)
        branch(page)
        assert fits(page)
        play_beside_another_agent(page)
        save_a_video(page, tmp_path)
        assert fits(page)
        page.get_by_role("link", name="Stars", exact=True).click()
        page.get_by_role("heading", name="Starred moments").wait_for()
        assert fits(page)


def test_axes_that_change_while_points_still_move_end_with_all_points_in_view(browser: Browser, address: str) -> None:
    with visiting(browser, DESKTOP) as page:
        page.goto(f"{address.partition('/?')[0]}/run/freeway/map")
        page.wait_for_selector("html[data-map-milliseconds]")
        for across, up in (("position", "depth"), ("age", "priority")):
            page.get_by_label("x-axis", exact=True).select_option(across)
            page.get_by_label("y-axis", exact=True).select_option(up)
        counted = page.locator("p > span[aria-live]").inner_text().strip(". ")

        def are_all_in_view() -> bool:
            page.get_by_role("button", name="Contact sheet", exact=True).click()
            return page.locator(".sheet h2").inner_text() == counted

        eventually(are_all_in_view, PATIENCE)


@pytest.fixture(scope="module")
def large_map(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the map of a run with `LARGE` transitions."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    from benchmarks.explorer import make_run, serving

    folder = tmp_path_factory.mktemp("large")
    make_run(folder / "breakout", LARGE, played=500)
    with serving(folder) as (address, _):
        yield f"{address.partition('/?')[0]}/run/breakout/map"


@contextmanager
def a_part_of_the_map(browser: Browser, address: str) -> Iterator[tuple[Page, Callable[[], None]]]:
    """Open a map, of which only a part arrives; yield the page, and what lets all of it arrive."""
    held: list[Route] = []
    with visiting(browser, DESKTOP) as page:
        page.route("**/map?at=*", lambda route: held.append(route))
        with page.expect_request("**/map?at=*"):
            page.goto(address)
        yield page, lambda: held[0].continue_()


def axes_of(page: Page) -> str:
    return str(page.evaluate("document.querySelector('canvas.back').toDataURL()"))


def test_a_large_map_shows_a_part_and_then_all_of_it_on_the_same_axes(browser: Browser, large_map: str) -> None:
    with a_part_of_the_map(browser, large_map) as (page, let_all_arrive):
        count = page.locator("p > span[aria-live]")
        assert count.inner_text().startswith(f"50,000 of {LARGE:,} transitions")
        axes = axes_of(page)
        assert page.locator("html[data-whole-map-milliseconds]").count() == 0
        let_all_arrive()
        page.wait_for_selector("html[data-whole-map-milliseconds]")
        assert count.inner_text().startswith(f"{LARGE:,} transitions")
        assert axes_of(page) == axes


def test_a_moment_can_be_opened_before_all_of_a_large_map_has_arrived(browser: Browser, large_map: str) -> None:
    with a_part_of_the_map(browser, large_map) as (page, _):
        page.wait_for_selector("html[data-map-milliseconds]")
        page.locator("canvas.over").hover()  # in the middle, where there are many points
        page.locator(".tip").wait_for()
        page.locator("canvas.over").click()
        page.get_by_role("heading", name="What is stored").wait_for()
        assert "/moment/" in page.url


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/", "This run cannot be read."),
        ("/run/damaged", "not valid TOML"),
        ("/run/damaged/map", "not valid TOML"),
        ("/run/missing", "There is no run missing"),
        ("/run/freeway/moment/123456789012345", "it was replaced, or never existed"),
        ("/elsewhere", "There is no such page"),
    ],
)
def test_what_cannot_be_shown_is_explained(browser: Browser, address: str, live: Run, path: str, reason: str) -> None:
    damaged = live.directory.path.with_name("damaged")
    (damaged / "logs").mkdir(parents=True, exist_ok=True)
    (damaged / "config.toml").write_text("nonsense = [")
    with visiting(browser, DESKTOP, refused="Failed to load resource") as page:
        page.goto(address)
        page.goto(address.partition("/?")[0] + path)
        page.get_by_text(reason).first.wait_for()
        assert fits(page)
