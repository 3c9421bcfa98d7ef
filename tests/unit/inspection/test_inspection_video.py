from __future__ import annotations

import re
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from imageio_ffmpeg import get_ffmpeg_exe
from numpy.typing import NDArray

from dpsr_apex.files import UnusablePath
from dpsr_apex.inspection.video import VideoError, VideoWriter


def frames(count: int, size: tuple[int, int]) -> Iterator[NDArray[np.uint8]]:
    for index in range(count):
        frame = np.zeros((*size, 3), np.uint8)
        frame[:, : size[1] * (index + 1) // count] = (200, 100, 50)
        yield frame


def decode(path: Path) -> tuple[bytes, str]:
    """Return all pixels of a video, frame by frame, and ffmpeg's output."""
    command = [get_ffmpeg_exe(), "-i", path, "-fps_mode", "passthrough", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(command, capture_output=True, check=True)
    return done.stdout, done.stderr.decode()


@pytest.mark.parametrize(
    ("size", "enlarged"),
    [((210, 160), (630, 480)), ((400, 600), (400, 600)), ((721, 75), (722, 76)), ((17, 9), (714, 378))],
)
def test_the_video_contains_the_enlarged_frames(
    tmp_path: Path, size: tuple[int, int], enlarged: tuple[int, int]
) -> None:
    path = tmp_path / "game.mp4"
    with VideoWriter(path, 30, size) as video:
        for frame in frames(7, size):
            video.write(frame)
        assert not path.exists()
    seen = np.frombuffer(decode(path)[0], np.uint8).reshape(7, *enlarged, 3)
    assert list(tmp_path.iterdir()) == [path]
    middle = seen[6, enlarged[0] // 2, enlarged[1] // 2].astype(int)
    assert np.abs(middle - (200, 100, 50)).max() < 12
    assert seen[0, enlarged[0] // 2, enlarged[1] * 3 // 4].max() < 12


def test_pixels_are_yuv420p(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "game.mp4", 15.5, (84, 84)) as video:
        for frame in frames(5, (84, 84)):
            video.write(frame)
    about = decode(tmp_path / "game.mp4")[1]
    assert re.search(r"Video: h264 .*yuv420p.* 672x672, .* 15\.50? fps", about)


def test_other_suffixes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnusablePath, match=r"must end in \.mp4"):
        VideoWriter(tmp_path / "game.avi", 30, (84, 84))


def record(path: Path, count: int, error: type[BaseException] | None = None) -> None:
    with VideoWriter(path, 30, (84, 84)) as video:
        for frame in frames(count, (84, 84)):
            video.write(frame)
        if error:
            raise error


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_leaves_only_the_old_video(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "game.mp4"
    path.write_bytes(b"an older one")
    with pytest.raises(error):
        record(path, 1, error)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"an older one"


def test_without_frames_no_video_is_written(tmp_path: Path) -> None:
    with pytest.raises(VideoError, match="no frames"), VideoWriter(tmp_path / "game.mp4", 30, (84, 84)):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "frame", [np.zeros((84, 84), np.uint8), np.zeros((84, 84, 3)), np.zeros((85, 84, 3), np.uint8)]
)
def test_a_frame_of_another_shape_or_dtype_is_refused(tmp_path: Path, frame: NDArray[np.uint8]) -> None:
    with (
        pytest.raises(VideoError, match="expected a frame of uint8"),
        VideoWriter(tmp_path / "game.mp4", 30, (84, 84)) as video,
    ):
        video.write(frame)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("count", [1, 500])
def test_the_error_contains_ffmpegs_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    command = VideoWriter._command
    monkeypatch.setattr(VideoWriter, "_command", lambda self: [*command(self)[:-1], str(tmp_path)])
    with pytest.raises(VideoError, match="ffmpeg failed: "):
        record(tmp_path / "game.mp4", count)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_no_file(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))
    try:
        with pytest.raises(VideoError, match="ffmpeg failed: "):
            record(tmp_path / "game.mp4", 50)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []
