"""Take pictures for the documentation: a real run in a pseudo-terminal, and a real report in a browser.

    python docs/screenshots.py live                 docs/pictures/live.png
    python docs/screenshots.py report runs/report   docs/pictures/report.png, by headless Chromium

The output of the terminal is fed to a terminal emulator, whose cells are drawn as they are.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

import matplotlib
import pyte
from PIL import Image, ImageDraw, ImageFont

PICTURES = Path(__file__).parent / "pictures"
COMMAND = Path(sys.executable).with_name("dpsr-apex")
FONT = Path(matplotlib.get_data_path()) / "fonts" / "ttf"

COLUMNS, LINES = 110, 38
FINER = 2  # scale at which the picture is drawn before it is reduced, for smooth edges
CELL = (16 * FINER, 34 * FINER)  # pixels of a character, before the reduction
FONT_SIZE = 26 * FINER
LIGHT, HEAVY = 2 * FINER, 5 * FINER  # pixels, width of lines
MARGIN = 20 * FINER
BACKGROUND, FOREGROUND = "#16181d", "#d5d8de"
PALETTE = {  # pyte calls yellow brown
    **{"default": FOREGROUND, "black": "#30343c", "white": "#d5d8de", "brightblack": "#747c8a"},
    **{"red": "#d97b72", "green": "#86c08a", "brown": "#e3bd6d", "blue": "#6d98d3"},
    **{"magenta": "#b48ccd", "cyan": "#62b6c6"},
}
ROUND = "╭╮╰╯"
BROWSER = ("chromium", "chromium-browser", "google-chrome")
PAGE = (1200, 1620)  # pixels
MOST_BYTES = 300_000


def main() -> None:
    """Parse the command line and take one picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    live = commands.add_parser("live", help="the live view of a run")
    live.add_argument(
        "--until",
        type=int,
        default=33_000,
        metavar="T",
        help="clock at which the picture is taken (default: %(default)s)",
    )
    live.add_argument(
        "run", nargs="*", default=["cartpole", "--actors", "2"], help="after --: arguments of dpsr-apex train"
    )
    live.set_defaults(take=lambda given: picture_of(screen_of_run(given.run, given.until)))
    report = commands.add_parser("report", help="the top of the page of a report")
    report.add_argument("folder", type=Path, metavar="FOLDER", help="folder with the index.html")
    report.set_defaults(take=lambda given: picture_of_page(given.folder / "index.html"))
    for command, name in ((live, "live.png"), (report, "report.png")):
        command.add_argument("--out", type=Path, default=PICTURES / name)
    given = parser.parse_args()
    save(given.take(given), given.out)


def save(picture: Image.Image, path: Path) -> None:
    """Write `picture` as a small PNG; exit with an error if it is too large."""
    path.parent.mkdir(exist_ok=True)
    picture.quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(path, optimize=True)
    size = path.stat().st_size
    sys.stdout.write(f"{path}: {picture.width} x {picture.height}, {size:,} bytes\n")
    if size > MOST_BYTES:
        sys.exit(f"{path} is too large: {size:,} bytes (limit {MOST_BYTES:,})")


def screen_of_run(run: list[str], until: int) -> pyte.Screen:
    """Run `dpsr-apex train` in a terminal until it shows clock `until`, stop it, and return the screen."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (LINES, COLUMNS))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "COLORTERM")}
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [COMMAND, "train", *run],
            cwd=folder,
            env=environment | {"TERM": "xterm-256color"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        try:
            while clock_on(screen) < until or has_output(master):
                stream.feed(os.read(master, 65_536))
        except OSError:  # raised at the end of a pseudo-terminal
            sys.exit(f"the run ended before t = {until:,}:\n{chr(10).join(screen.display)}")
        finally:
            process.send_signal(signal.SIGINT)
            drain(master)
            process.wait()
    return screen


def clock_on(screen: pyte.Screen) -> int:
    """Return the clock that the screen shows; 0 if it shows none."""
    found = re.search(r"([\d,]+) / [\d,]+ transitions", "\n".join(screen.display))
    return int(found[1].replace(",", "")) if found else 0


def has_output(terminal: int) -> bool:
    """Return whether more output follows within 0.1 s: a picture is taken of a complete screen."""
    return bool(select.select([terminal], [], [], 0.1)[0])


def drain(terminal: int) -> None:
    """Read and discard all output, so that the process does not block, and close the terminal."""
    try:
        while os.read(terminal, 65_536):
            pass
    except OSError:
        os.close(terminal)


def picture_of(screen: pyte.Screen) -> Image.Image:
    """Return a picture of the cells of the terminal."""
    width, height = CELL
    size = (COLUMNS * width + 2 * MARGIN, LINES * height + 2 * MARGIN)
    picture = Image.new("RGB", size, BACKGROUND)
    draw = ImageDraw.Draw(picture)
    fonts = {
        bold: ImageFont.truetype(FONT / f"DejaVuSansMono{'-Bold' * bold}.ttf", FONT_SIZE) for bold in (False, True)
    }
    for row in range(LINES):
        for column in range(COLUMNS):
            cell = screen.buffer[row][column]
            left, top = MARGIN + column * width, MARGIN + row * height
            colour = PALETTE.get(cell.fg, f"#{cell.fg}")
            if cell.data != " " and not draw_shape(draw, cell.data, left, top, colour):
                middle = (left + width / 2, top + height * 0.76)
                draw.text(middle, cell.data, font=fonts[cell.bold], fill=colour, anchor="ms")
    return picture.resize((size[0] // FINER, size[1] // FINER), Image.Resampling.LANCZOS)


def draw_shape(draw: ImageDraw.ImageDraw, character: str, left: int, top: int, colour: str) -> bool:
    """Draw a character that must join its neighbours exactly, which fonts do not; return False for any other."""
    width, height = CELL
    if "▁" <= character <= "█":
        eighths = ord(character) - ord("▁") + 1
        draw.rectangle((left, top + height * (8 - eighths) / 8, left + width - 1, top + height - 1), fill=colour)
    elif "⠀" <= character <= "⣿":
        draw_braille(draw, ord(character) - ord("⠀"), left, top, colour)
    elif character in "─━╸":
        middle, thick = top + height / 2, LIGHT if character == "─" else HEAVY
        right = left + width / (2 if character == "╸" else 1)
        draw.rectangle((left, middle - thick / 2, right - 1, middle + thick / 2 - 1), fill=colour)
    elif character in f"│┤{ROUND}":
        draw_light(draw, character, left, top, colour)
    else:
        return False
    return True


def draw_braille(draw: ImageDraw.ImageDraw, bits: int, left: int, top: int, colour: str) -> None:
    """Draw two by four dots, with equal distances across characters."""
    width, height = CELL
    radius = 2.6 * FINER
    for place, (x, y) in enumerate([(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3)]):
        if bits >> place & 1:
            across, down = left + width * (2 * x + 1) / 4, top + height * (2 * y + 1) / 8
            draw.ellipse((across - radius, down - radius, across + radius, down + radius), fill=colour)


def draw_light(draw: ImageDraw.ImageDraw, character: str, left: int, top: int, colour: str) -> None:
    """Draw light lines that meet in the middle of the cell, with round corners."""
    width, height = CELL
    x, y, half = left + width / 2, top + height / 2, LIGHT / 2
    upper, lower, radius = top, top + height - 1, width / 2
    down, right = character in "╭╮", character in "╭╰"
    if character in ROUND:
        centre_x, centre_y = x + (radius if right else -radius), y + (radius if down else -radius)
        box = (centre_x - radius - half, centre_y - radius - half, centre_x + radius + half, centre_y + radius + half)
        begin = {"╭": 180, "╮": 270, "╰": 90, "╯": 0}[character]
        draw.arc(box, begin, begin + 90, fill=colour, width=LIGHT)
    from_y, to_y = (upper, lower) if character in "│┤" else (y + radius, lower) if down else (upper, y - radius)
    draw.rectangle((x - half, from_y, x + half - 1, to_y), fill=colour)
    if character == "┤":
        draw.rectangle((left, y - half, x, y + half - 1), fill=colour)


def picture_of_page(page: Path) -> Image.Image:
    """Return a picture of the top of a page, as a desktop browser shows it."""
    browser = next((found for name in BROWSER if (found := shutil.which(name))), None)
    if browser is None:
        sys.exit(f"no browser found: install one of {', '.join(BROWSER)}")
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "page.png"
        subprocess.run(
            [
                *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                *(
                    "--run-all-compositor-stages-before-draw",
                    "--virtual-time-budget=5000",
                ),  # until rendered
                *(f"--user-data-dir={folder}/profile", f"--window-size={PAGE[0]},{PAGE[1]}"),
                *(f"--screenshot={shot}", page.resolve().as_uri()),
            ],
            check=True,
            capture_output=True,
        )
        return Image.open(shot).convert("RGB")


if __name__ == "__main__":
    main()
