"""Conversions from results of the replay to messages."""

from __future__ import annotations

from dataclasses import replace

from dpsr_apex.replay.records import Chains, Round, Sample
from dpsr_apex.wire.messages import Batch, Recycle, Recycled


def recycle_request(round_: Round, era: int) -> Recycle:
    """Return the request to recycle all candidates of a round, without the next states of the stored transitions."""
    stored = round_.stored
    return Recycle(era, round_.number, round_.candidates, replace(stored, s_t=[()] * len(stored)))


def chains_of(message: Recycled) -> Chains:
    """Return the chains in an answer."""
    return Chains(message.identities, message.lengths, message.rewards, message.transitions, message.td_errors)


def batch_message(sample: Sample, t: int, era: int) -> Batch:
    """Return the message with a batch sampled at clock t, without snapshots, which a learner does not need."""
    transitions = replace(sample.transitions, snapshots=[b""] * len(sample.transitions))
    return Batch(era, t, sample.identities, sample.weights, transitions)
