"""Take the pictures of the explorer from real runs, by headless Chromium.

    python docs/explorer_pictures.py stills runs/kungfumaster  docs/pictures/explorer_*.png
    python docs/explorer_pictures.py tour runs/kungfumaster    docs/pictures/explorer.webp

The moving picture is a tour: from the map into a moment, some steps with the agent, and some by hand. The pointer,
which a browser does not put on its screenshots, is added.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw
from playwright.sync_api import Locator, Page, sync_playwright

PICTURES = Path(__file__).parent / "pictures"
COMMAND = Path(sys.executable).with_name("dpsr-apex")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((found for name in BROWSERS if (found := shutil.which(name))), None)
SWITCHES = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking")

STILL, TOUR, PHONE = (1280, 860), (1080, 700), (390, 844)  # CSS pixels
TALL = 1240  # CSS pixels, height of a moment
REDUCED = 0.75  # of the tour
MOST_BYTES = 1_500_000  # of one picture
STEPS_OF_AGENT, STEPS_OF_HAND = 36, 12
FRAME = 90  # milliseconds of a step
POINTER = ((0, 0), (0, 17), (4, 13), (7, 20), (10, 19), (7, 12), (12, 12))  # pixels


class Picture(NamedTuple):
    """One picture of the tour, and how long it is shown."""

    image: Image.Image
    milliseconds: int


class Tour:
    """Takes pictures of a page with a pointer on it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.pictures: list[Picture] = []
        self._at = (TOUR[0] / 2, TOUR[1] / 2)

    def take(self, milliseconds: int) -> None:
        """Add a picture of the page as it is."""
        image = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        place = [(self._at[0] + x, self._at[1] + y) for x, y in POINTER]
        ImageDraw.Draw(image).polygon(place, fill="black", outline="white", width=1)
        size = (round(image.width * REDUCED), round(image.height * REDUCED))
        self.pictures.append(Picture(image.resize(size, Image.Resampling.LANCZOS), milliseconds))

    def move(self, x: float, y: float) -> None:
        """Move the pointer in a few pictures."""
        begin = self._at
        for step in range(1, 7):
            share = step / 6 * step / 6 * (3 - 2 * step / 6)
            self._at = begin[0] + (x - begin[0]) * share, begin[1] + (y - begin[1]) * share
            self.page.mouse.move(*self._at)
            self.take(60)

    def move_to(self, wanted: Locator) -> None:
        """Move the pointer to the middle of something."""
        box = wanted.bounding_box()
        assert box is not None
        self.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)

    def click(self, wanted: Locator) -> None:
        """Move the pointer to something and click on it."""
        self.move_to(wanted)
        wanted.click()
        self.take(300)


@contextmanager
def serving(run: Path) -> Iterator[str]:
    """Serve the folder of a run; yield the printed address."""
    command = [str(COMMAND), "ui", str(run.parent), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found is not None
            yield found[0]
        finally:
            server.terminate()


@contextmanager
def browsing(address: str, size: tuple[int, int]) -> Iterator[Page]:
    """Open a page with the token of this address."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=[*SWITCHES])
        page = browser.new_page(viewport={"width": size[0], "height": size[1]})
        page.set_default_timeout(300_000)
        page.goto(address)
        yield page
        browser.close()


def point_at(page: Page, wanted: str, top: float = 0.05) -> tuple[float, float]:
    """Return where on the map a transition is whose text matches, below a share `top`, with its filmstrip shown."""
    page.locator("html[data-map-milliseconds]").wait_for()
    page.wait_for_load_state("networkidle")
    box = page.locator("canvas.over").bounding_box()
    assert box is not None
    columns = range(int(box["width"] * 0.45), int(box["width"]) - 30, 7)
    for y in range(int(box["height"] * top), int(box["height"]) - 60, 7):
        for x in columns:
            page.mouse.move(box["x"] + x, box["y"] + y)
            page.evaluate("new Promise(requestAnimationFrame)")
            tip = page.locator(".tip")
            if tip.is_visible() and re.search(wanted, tip.inner_text()):
                page.locator(".tip img").wait_for()
                page.wait_for_load_state("networkidle")
                return box["x"] + x, box["y"] + y
    sys.exit(f"no transition on the map matches {wanted}")


def await_moment(page: Page) -> None:
    """Wait until a moment can be played on from, and every action was tried."""
    page.locator(".play-controls:not(.waiting)").wait_for()
    page.locator("button.try").first.wait_for()
    page.wait_for_timeout(500)


def await_step(page: Page, step: int) -> None:
    """Wait until a step is shown."""
    page.locator(".timeline .figure").get_by_text(f"{step} / {step}", exact=True).wait_for()
    page.wait_for_timeout(60)


def take_stills(address: str, run: str) -> Iterator[tuple[str, Image.Image]]:
    """Yield pictures of the map, of a moment and of a phone."""
    base = address.partition("/?")[0]
    for name, size in (("explorer_map", STILL), ("explorer_phone", PHONE)):
        with browsing(address, size) as page:
            page.goto(f"{base}/run/{run}/map")
            x, y = point_at(page, "recycled")
            yield name, Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            if size == STILL:
                page.set_viewport_size({"width": STILL[0], "height": TALL})
                x, y = point_at(page, "recycled", top=0.3)
                page.mouse.click(x, y)
                await_moment(page)
                page.mouse.move(0, 0)
                yield "explorer_moment", Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def take_tour(address: str, run: str) -> list[Picture]:
    """Return the pictures of the tour."""
    with browsing(address, TOUR) as page:
        tour = Tour(page)
        page.goto(f"{address.partition('/?')[0]}/run/{run}/map")
        x, y = point_at(page, "reward [1-9]")
        page.mouse.move(5, 5)
        tour.take(1_200)
        tour.move(x, y)
        page.locator(".tip img").wait_for()
        page.wait_for_timeout(500)
        tour.take(1_600)
        page.mouse.click(x, y)
        await_moment(page)
        tour.take(2_200)
        page.mouse.wheel(0, 420)
        page.wait_for_timeout(400)
        tour.take(1_800)
        page.locator(".play").evaluate("element => element.scrollIntoView({block: 'end', behavior: 'instant'})")
        page.wait_for_timeout(300)
        tour.take(800)
        play(tour)
        return tour.pictures


def play(tour: Tour) -> None:
    """Play some steps with the agent, then some by hand."""
    page = tour.page
    tour.move_to(page.get_by_role("button", name="Step", exact=True))
    for step in range(1, STEPS_OF_AGENT + 1):
        page.get_by_role("button", name="Step", exact=True).click()
        await_step(page, step)
        tour.take(FRAME)
    tour.take(400)
    tour.click(page.get_by_role("button", name="You", exact=True))
    for step in range(STEPS_OF_AGENT + 1, STEPS_OF_AGENT + STEPS_OF_HAND + 1):
        page.keyboard.press("ArrowRight")
        await_step(page, step)
        tour.take(FRAME)
    tour.take(1_500)


def save(pictures: Sequence[Picture], path: Path) -> None:
    """Write one picture as PNG, or several as an animated WebP; exit with an error if the file is too large."""
    path.parent.mkdir(exist_ok=True)
    first, *others = (picture.image for picture in pictures)
    if others:
        durations = [picture.milliseconds for picture in pictures]
        first.save(path, save_all=True, append_images=others, duration=durations, loop=0, quality=72, method=6)
    else:
        first.quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(path, optimize=True)
    size = path.stat().st_size
    sys.stdout.write(f"{path}: {first.width} x {first.height}, {len(pictures)} pictures, {size:,} bytes\n")
    if size > MOST_BYTES:
        sys.exit(f"{path} is too large: {size:,} bytes (limit {MOST_BYTES:,})")


def main() -> None:
    """Parse the command line and take the pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("stills", "tour"), help="pictures of pages, or the moving one")
    parser.add_argument("run", type=Path, metavar="RUN_DIR", help="a run of a game, finished or running")
    parser.add_argument("--out", type=Path, default=PICTURES, metavar="FOLDER")
    given = parser.parse_args()
    with serving(given.run) as address:
        if given.what == "stills":
            for name, image in take_stills(address, given.run.name):
                save([Picture(image, 0)], given.out / f"{name}.png")
        else:
            save(take_tour(address, given.run.name), given.out / "explorer.webp")


if __name__ == "__main__":
    main()
