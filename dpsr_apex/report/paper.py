"""The scores in the paper's Tables 1 and 4, as printed.

Each is a single number for a game, method and parameter set; the paper reports neither the number of seeds nor a
variance.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from dpsr_apex.methods import METHODS


class PaperScores(NamedTuple):
    """One game's row of both tables: `dpsr_best` is only in Table 1, `dpsr0` to `dpsr4` only in Table 4."""

    original: float
    prioritized: float
    dpsr_best: float
    dpsr0: float
    dpsr1: float
    dpsr2: float
    dpsr3: float
    dpsr4: float


COLUMNS: Final = (
    METHODS["uniform"].paper,
    METHODS["per"].paper,
    "DPSR best",
    "DPSR0",
    "DPSR1",
    "DPSR2",
    "DPSR3",
    "DPSR4",
)

# gamma, C_c, F_r, C_r of the parameter sets in Table 4.
PARAMETER_SETS: Final = {
    "DPSR0": (0.6, 128, 20_000, 8),
    "DPSR1": (0.1, 128, 10_000, 16),
    "DPSR2": (0.2, 256, 20_000, 8),
    "DPSR3": (0.3, 128, 10_000, 8),
    "DPSR4": (0.3, 256, 10_000, 16),
}

PAPER_SCORES: Final[dict[str, PaperScores]] = {
    "AirRaid": PaperScores(545.0, 602.5, 4182.5, 2892.5, 1285.0, 632.5, 3175.0, 1150.0),
    "Alien": PaperScores(853.0, 917.0, 1824.0, 995.0, 673.0, 942.0, 1111.0, 750.0),
    "Amidar": PaperScores(155.0, 145.7, 294.6, 148.1, 221.8, 155.5, 164.3, 136.4),
    "Assault": PaperScores(882.5, 638.9, 990.0, 651.8, 714.3, 704.9, 675.7, 676.9),
    "Asterix": PaperScores(2055.0, 1435.0, 2430.0, 1600.0, 2145.0, 1635.0, 1180.0, 1635.0),
    "BeamRider": PaperScores(2101.8, 2442.0, 2558.8, 1525.6, 1899.2, 1086.0, 2317.6, 1021.6),
    "Bowling": PaperScores(29.0, 24.2, 60.5, 44.4, 9.6, 2.0, 29.1, 31.8),
    "Breakout": PaperScores(87.0, 136.4, 281.4, 134.5, 80.6, 91.5, 129.6, 145.8),
    "Carnival": PaperScores(3286.0, 2006.0, 3981.0, 3847.0, 2704.0, 3356.0, 860.0, 2817.0),
    "Enduro": PaperScores(612.3, 497.3, 1025.1, 795.4, 503.6, 725.9, 771.4, 919.2),
    "Freeway": PaperScores(30.2, 29.5, 32.2, 30.7, 31.7, 30.5, 20.6, 31.7),
    "Frostbite": PaperScores(229.0, 998.0, 2186.0, 382.0, 664.0, 217.0, 1502.0, 1505.0),
    "Hero": PaperScores(2891.5, 2585.0, 11060.0, 5937.0, 2936.0, 2838.5, 6534.0, 3623.0),
    "JourneyEscape": PaperScores(-4150.0, -3350.0, 4440.0, -6520.0, -2130.0, -4290.0, 140.0, -3040.0),
    "Krull": PaperScores(4736.7, 5541.3, 9406.3, 5864.4, 6418.8, 6001.2, 6279.3, 6248.7),
    "KungFuMaster": PaperScores(14900.0, 19820.0, 28300.0, 14500.0, 16020.0, 13990.0, 13240.0, 20490.0),
    "MsPacman": PaperScores(1682.0, 1666.0, 3095.0, 1926.0, 1913.0, 1768.0, 1742.0, 1757.0),
    "Phoenix": PaperScores(3668.0, 2787.0, 4380.0, 3234.0, 3122.0, 3342.0, 3127.0, 1991.0),
    "Qbert": PaperScores(1980.0, 885.0, 4525.0, 2412.5, 2167.5, 2002.5, 2120.0, 565.0),
    "Riverraid": PaperScores(5334.0, 4596.0, 5792.0, 5073.0, 5349.0, 4949.0, 3175.0, 3194.0),
    "SpaceInvaders": PaperScores(610.0, 316.5, 580.5, 510.0, 579.5, 490.0, 406.0, 545.0),
    "StarGunner": PaperScores(2050.0, 1490.0, 2490.0, 870.0, 1680.0, 1440.0, 2180.0, 1890.0),
    "VideoPinball": PaperScores(7313.0, 12025.1, 51993.2, 30337.0, 21596.9, 15689.0, 16650.0, 9483.6),
    "Zaxxon": PaperScores(0.0, 0.0, 3640.0, 0.0, 0.0, 1270.0, 0.0, 0.0),
}
