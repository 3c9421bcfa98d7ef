"""Write RGB frames to an mp4 video (H.264, yuv420p). The file is written atomically."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import numpy as np
from imageio_ffmpeg import get_ffmpeg_exe
from numpy.typing import NDArray

from dpsr_apex.errors import UserError
from dpsr_apex.files import AtomicFile, ensure_usable

_MAX_ENLARGED_SIDE = 720  # pixels: small frames are enlarged by the largest integer factor within this limit


class VideoError(UserError):
    """Raised when a video cannot be written."""


class VideoWriter:
    """Writes frames of `size` (height, width) to `path` at `fps` frames per second; a context manager.

    The file appears at the end of the block, and only if the block ends without an exception.
    """

    def __init__(self, path: Path, fps: float, size: tuple[int, int]) -> None:
        ensure_usable(path, ".mp4")
        self._path = path
        self._fps = fps
        self._size = size
        self._scale = max(_MAX_ENLARGED_SIDE // max(size), 1)
        self._frames = 0

    def __enter__(self) -> Self:
        self._file = AtomicFile(self._path)
        self._errors: IO[bytes] = tempfile.TemporaryFile()
        self._ffmpeg = subprocess.Popen(
            self._command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            start_new_session=True,  # so that Ctrl-C reaches only this process, which then ends ffmpeg
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
            self._file.discard()

    def write(self, frame: NDArray[np.uint8]) -> None:
        """Add one frame, uint8 of shape (height, width, 3)."""
        if frame.shape != (*self._size, 3) or frame.dtype != np.uint8:
            raise VideoError(f"expected a frame of uint8{(*self._size, 3)} (got {frame.dtype}{frame.shape})")
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
            raise VideoError(f"{self._path}: no video was written because there are no frames")
        self._ffmpeg.communicate()
        if self._ffmpeg.returncode:
            raise self._failure()
        self._file.commit()

    def _failure(self) -> VideoError:
        self._ffmpeg.wait()
        self._errors.seek(0)
        output = self._errors.read().decode(errors="replace").strip()
        return VideoError(f"{self._path}: ffmpeg failed: {output or f'exit code {self._ffmpeg.returncode}'}")

    def _command(self) -> list[str]:
        height, width = (_even(side * self._scale) for side in self._size)
        source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(self._fps), "-i", "-"]
        coded = ["-c:v", "libx264", "-preset", "veryfast", "-pix_fmt", "yuv420p", "-movflags", "+faststart"]
        target = str(self._file.temporary)
        return [get_ffmpeg_exe(), "-y", "-loglevel", "error", "-threads", "1", *source, *coded, target]


def _even(side: int) -> int:
    return side + side % 2


def _padded_to_even(frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pad odd sides with a black line at the bottom or right, because yuv420p needs even sides."""
    height, width, _ = frame.shape
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)))
