"""An emulator that adds up its own rewards, game by game: the oracle for scores."""

from __future__ import annotations

from typing import Any

from dpsr_apex.envs.atari import Atari


class CountedEmulator:
    """Passes everything on to the emulator; `totals` has the sum of all rewards of every game since its reset."""

    def __init__(self, env: Any) -> None:
        assert isinstance(env, Atari)
        self.totals: list[int] = []
        self._inner = env._ale
        env._ale = self  # type: ignore[assignment] # it passes everything on

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def reset_game(self) -> None:
        self.totals.append(0)
        self._inner.reset_game()

    def act(self, action: Any) -> int:
        reward: int = self._inner.act(action)
        self.totals[-1] += reward
        return reward
