"""The table of methods: five methods, composed of existing parts, with distinct colours and markers in figures."""

from __future__ import annotations

from itertools import combinations

import pytest
from matplotlib.colors import to_rgb
from matplotlib.markers import MarkerStyle

from dpsr_apex.methods import METHODS
from dpsr_apex.replay.recyclers import RECYCLERS
from dpsr_apex.replay.removers import REMOVERS
from dpsr_apex.replay.samplers import SAMPLERS

DESIGN = {  # sampler, remover, recycler
    "uniform": ("uniform", "oldest", "none"),
    "per": ("proportional", "oldest", "none"),
    "per_rank": ("rank", "oldest", "none"),
    "double": ("proportional", "priority", "none"),
    "dpsr": ("proportional", "priority", "rounds"),
}


def test_the_methods_of_the_design_are_composed_as_it_says() -> None:
    found = {name: (method.sampler, method.remover, method.recycler) for name, method in METHODS.items()}
    assert DESIGN.items() <= found.items()
    assert [name for name in DESIGN if METHODS[name].recycles] == ["dpsr"]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_its_name_and_parts_that_exist(name: str) -> None:
    method = METHODS[name]
    assert method.name == name
    assert method.sampler in SAMPLERS
    assert method.remover in REMOVERS
    assert method.recycler in RECYCLERS
    assert method.description


def test_no_two_methods_look_alike() -> None:
    for one, other in combinations(METHODS.values(), 2):
        assert sum(abs(a - b) for a, b in zip(to_rgb(one.colour), to_rgb(other.colour), strict=True)) > 0.3
        assert one.marker != other.marker
    assert all(MarkerStyle(method.marker).is_filled() for method in METHODS.values())
