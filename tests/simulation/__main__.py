"""Print the history of a seed: `python -m tests.simulation SEED`."""

from __future__ import annotations

import sys

from tests.simulation.world import World


def main() -> int:
    (seed,) = map(int, sys.argv[1:])
    world = World(seed)
    try:
        world.play()
    finally:
        print("\n".join(world.tell()))  # noqa: T201 -- that is what it is for
    return 0


if __name__ == "__main__":
    sys.exit(main())
