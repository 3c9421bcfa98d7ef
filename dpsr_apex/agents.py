"""The agents and networks that can be named in a config, as data. Config, command line and docs read these tables.

A user's own class is named as "package.module:Class" instead.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class AgentEntry(NamedTuple):
    """One agent."""

    cls: str  # "package.module:Class", a `dpsr_apex.agent.protocol.Agent`
    description: str


AGENTS: Final = {
    "dqn": AgentEntry("dpsr_apex.agent.dqn:DqnAgent", "expected returns, as in the paper"),
    "quantile": AgentEntry("dpsr_apex.agent.quantile:QuantileAgent", "quantiles of the returns (QR-DQN)"),
}

NETWORKS: Final = {
    "auto": "nature, small or mlp, by the observations",
    "nature": "three convolutions, for frames of at least 36 pixels",
    "efficient": "two convolutions, for frames of at least 25 pixels: a sixth of the computation of nature",
    "pooled": "nature with global average pooling: a fifteenth of the weights",
    "impala": "fifteen convolutions in residual blocks",
    "small": "one convolution, for the frames of MinAtar",
    "mlp": "hidden layers of `learner.hidden` units, for vectors",
}
