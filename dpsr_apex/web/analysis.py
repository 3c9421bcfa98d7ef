"""What the agent expects in a stored moment: values, their distribution, saliency, and the outcome of every action."""

from __future__ import annotations

from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dpsr_apex.agent.protocol import Agent, Experience
from dpsr_apex.envs.compression import DamagedSnapshot
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.inspection.pictures import frame_picture
from dpsr_apex.inspection.rendering import Picture, render_rgb
from dpsr_apex.inspection.stored import StoredTransition
from dpsr_apex.inspection.verify import verify_transition

_PICTURE_SIDE = 168  # pixels of an observation without a rendering


class Expectation(NamedTuple):
    """What the agent expects in a state."""

    q_values: list[float]
    greedy: int
    quantiles: list[list[float]] | None  # by action, ascending; None for an agent without
    saliency: NDArray[np.float32] | None  # of the greedy action's value, shape of a frame, at most 1; None without


class Outcome(NamedTuple):
    """One action taken in a state."""

    action: int
    reward: float  # as in training
    score: float  # unclipped
    terminal: bool
    td_error: float  # |delta| with the agent's networks
    picture: Picture
    is_stored: bool  # whether it is the action that is stored


def expectation_of(agent: Agent, frames: NDArray[Any]) -> Expectation:
    """Return what an agent expects in a state, given its observation."""
    q_values = agent.q_values(frames[np.newaxis])[0]
    greedy = int(q_values.argmax())
    quantiles = getattr(agent, "quantiles", None)
    spread = quantiles(frames[np.newaxis])[0].astype(float).tolist() if quantiles else None
    return Expectation(q_values.astype(float).tolist(), greedy, spread, saliency_of(agent, frames, greedy))


def saliency_of(agent: Agent, frames: NDArray[Any], action: int) -> NDArray[np.float32] | None:
    """Return how much the value of an action depends on each pixel or number, at most 1; None if that is unknown.

    It is the greatest gradient over the frames of the stack, and over the planes of a frame.
    """
    saliency = getattr(agent, "saliency", None)
    if saliency is None:
        return None
    try:
        gradient = saliency(frames, action).max(axis=0)
    except (RuntimeError, TypeError):  # a user's network may not have gradients
        return None
    folded: NDArray[np.float32] = gradient.max(axis=0) if gradient.ndim == 3 else gradient
    greatest = float(folded.max())
    return folded / greatest if greatest > 0 and np.isfinite(greatest) else np.zeros_like(folded)


def try_every_action(env: StackedEnv, agent: Agent, stored: StoredTransition) -> list[Outcome]:
    """Take one step with each action from the state of a stored transition; `env` must have the rules of training."""
    s_tm1 = env.codec.decompress_stack(stored.s_tm1)
    steps, ends, pictures = [], [], []
    for action in range(env.actions):
        env.restore(stored.snapshot, stored.s_tm1, s_tm1.copy())
        steps.append(env.step(action))
        ends.append(env.frames)
        rendered = render_rgb(env)
        pictures.append(frame_picture(env.frames[-1], _PICTURE_SIDE) if rendered is None else rendered)
    experience = Experience(
        np.repeat(s_tm1[np.newaxis], env.actions, axis=0),
        np.arange(env.actions),
        np.array([step.reward for step in steps], np.float32),
        np.stack(ends),
        np.array([step.terminal for step in steps]),
        np.ones(env.actions, np.uint8),
    )
    td_errors = agent.td_errors(experience).tolist()
    return [
        Outcome(action, step.reward, step.score, step.terminal, td_error, picture, action == stored.action)
        for action, (step, td_error, picture) in enumerate(zip(steps, td_errors, pictures, strict=True))
    ]


def present_td_error(env: StackedEnv, agent: Agent, stored: StoredTransition) -> float:
    """Return |delta| of a stored transition with the agent's networks."""
    states = env.codec.decompress_stacks([stored.s_tm1, stored.s_t])
    experience = Experience(
        states[:1],
        np.array([stored.action]),
        np.array([stored.reward], np.float32),
        states[1:],
        np.array([stored.terminal]),
        np.array([stored.n_steps], np.uint8),
    )
    return float(agent.td_errors(experience)[0])


def verified(env: StackedEnv, stored: StoredTransition, action: str) -> tuple[str, bool | None]:
    """Return whether repeating the stored action reproduces the stored outcome, as text and as a boolean.

    The boolean is None if nothing can be compared.
    """
    try:
        verification = verify_transition(env, stored)
    except DamagedSnapshot as damage:
        return f"cannot be restored: {damage}", False
    return verification.text(action), not verification.differs if verification.compared else None


def png(picture: NDArray[np.uint8]) -> bytes:
    """Encode a picture, RGB or grey, quickly rather than small."""
    file = BytesIO()
    Image.fromarray(picture).save(file, format="png", compress_level=1)
    return file.getvalue()
