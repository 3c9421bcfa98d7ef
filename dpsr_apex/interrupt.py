"""Ctrl-C and SIGTERM: the first signal asks the run to save and stop, the second one ends it at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Inside the block, a signal sets `asked` and `exit_code`; afterwards the previous handlers are restored.

    `on_first` is called by the handler of the first signal. Outside the main thread, where Python allows no handlers,
    signals keep their effect.
    """

    def __init__(self, on_first: Callable[[], None] = lambda: None) -> None:
        self._on_first = on_first
        self.asked = False
        self.exit_code = 0

    def __enter__(self) -> Self:
        numbers = SIGNALS if threading.current_thread() is threading.main_thread() else ()
        self._before = {number: signal.signal(number, self._on_signal) for number in numbers}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.exit_code = 128 + number
        if self.asked:
            if os.isatty(1):
                os.write(1, b"\x1b[?25h")  # show the cursor, which the live view hides
            os._exit(self.exit_code)
        self.asked = True
        self._on_first()
