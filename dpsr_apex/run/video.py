"""Videos of games: RGB frames in, an mp4 file out that any player shows. The file is whole or not there at all."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import numpy as np
from imageio_ffmpeg import get_ffmpeg_exe
from numpy.typing import NDArray

_PLEASANT = 720  # pixels: small frames are enlarged by the greatest whole factor that keeps both sides within this


class VideoError(Exception):
    """A video that cannot be written: why."""


def ensure_filmable(path: Path) -> None:
    """Refuse a path that no video can be written to."""
    if path.suffix != ".mp4":
        raise VideoError(f"{path}: videos are written as .mp4, not as {path.suffix or 'a name without a suffix'}")
    if not path.parent.is_dir():
        raise VideoError(f"{path}: the folder {path.parent} does not exist")


class VideoWriter:
    """Writes frames of `size` (height, width) to `path` at `fps` frames a second; use it in a `with` block.

    The file appears at the end of the block, and only if it ends without an exception.
    """

    def __init__(self, path: Path, fps: float, size: tuple[int, int]) -> None:
        ensure_filmable(path)
        self._path = path
        self._temporary = path.with_name(f".unfinished-{path.name}")
        self._fps = fps
        self._size = size
        self._scale = max(_PLEASANT // max(size), 1)
        self._frames = 0

    def __enter__(self) -> Self:
        self._errors: IO[bytes] = tempfile.TemporaryFile()
        self._ffmpeg = subprocess.Popen(
            self._command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C is for the run, which then ends ffmpeg itself
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._ffmpeg.kill()
            self._ffmpeg.communicate()
            self._errors.close()
            self._temporary.unlink(missing_ok=True)

    def write(self, frame: NDArray[np.uint8]) -> None:
        """Add one frame, uint8 of shape (height, width, 3)."""
        if frame.shape != (*self._size, 3) or frame.dtype != np.uint8:
            raise VideoError(f"a frame is {frame.dtype} of shape {frame.shape}, not uint8 of {(*self._size, 3)}")
        enlarged = frame.repeat(self._scale, axis=0).repeat(self._scale, axis=1)
        self._send(_padded_to_even(enlarged).tobytes())
        self._frames += 1

    def _send(self, content: bytes) -> None:
        assert self._ffmpeg.stdin is not None
        try:
            self._ffmpeg.stdin.write(content)
        except BrokenPipeError as error:
            raise self._failure() from error

    def _finish(self) -> None:
        if not self._frames:
            raise VideoError(f"{self._path}: there was no frame to write")
        self._ffmpeg.communicate()
        if self._ffmpeg.returncode:
            raise self._failure()
        self._temporary.replace(self._path)

    def _failure(self) -> VideoError:
        self._ffmpeg.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip()
        return VideoError(f"{self._path}: ffmpeg failed: {said or f'exit code {self._ffmpeg.returncode}'}")

    def _command(self) -> list[str]:
        height, width = (_even(side * self._scale) for side in self._size)
        taken = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(self._fps), "-i", "-"]
        given = ["-c:v", "libx264", "-pix_fmt", "yuv420p", "-movflags", "+faststart", str(self._temporary)]
        return [get_ffmpeg_exe(), "-y", "-loglevel", "error", "-threads", "1", *taken, *given]


def _even(side: int) -> int:
    return side + side % 2


def _padded_to_even(frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """`frame` with a black line at the bottom or the right where a side is odd: yuv420p halves both."""
    height, width, _ = frame.shape
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)))
