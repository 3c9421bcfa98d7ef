"""Conversion of stored transitions to arrays for the network."""

from __future__ import annotations

from dpsr_apex.agent.protocol import Experience
from dpsr_apex.envs.compression import FrameCodec
from dpsr_apex.replay.transitions import Transitions


def decompress(transitions: Transitions, codec: FrameCodec) -> Experience:
    """Decompress the observations of these transitions; frames that s_tm1 and s_t share are decompressed once."""
    observations = codec.decompress_stacks([*transitions.s_tm1, *transitions.s_t])
    return Experience(
        s_tm1=observations[: len(transitions)],
        a_tm1=transitions.a_tm1,
        r_t=transitions.r_t,
        s_t=observations[len(transitions) :],
        terminal=transitions.terminal,
        n_steps=transitions.n_steps,
    )
