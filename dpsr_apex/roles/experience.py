"""From transitions as they travel to arrays that a network can take."""

from __future__ import annotations

from dpsr_apex.agent.dqn import Experience
from dpsr_apex.envs.compression import FrameCodec
from dpsr_apex.replay.transitions import Transitions


def inflate(transitions: Transitions, codec: FrameCodec) -> Experience:
    """The same transitions with their observations inflated; frames that s_tm1 and s_t share are inflated once."""
    observations = codec.inflate_stacks([*transitions.s_tm1, *transitions.s_t])
    return Experience(
        s_tm1=observations[: len(transitions)],
        a_tm1=transitions.a_tm1,
        r_t=transitions.r_t,
        s_t=observations[len(transitions) :],
        terminal=transitions.terminal,
        n_steps=transitions.n_steps,
    )
