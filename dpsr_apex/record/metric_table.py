"""Every key in a row of `metrics.jsonl` and `evaluations.jsonl`, with its unit and its meaning.

`docs/metrics.md` is generated from these tables (`make docs`). A test fails if a key is written but not listed.
"""

from __future__ import annotations

from typing import NamedTuple


class Metric(NamedTuple):
    """One key of a row."""

    name: str
    unit: str
    meaning: str


METRICS: dict[str, tuple[Metric, ...]] = {
    "Progress": (
        Metric("t", "transitions", "the clock: transitions inserted into the replay so far"),
        Metric(
            "environment_steps",
            "steps",
            "steps of all environments so far, except recycled ones whose results were lost",
        ),
        Metric("updates", "updates", "gradient steps so far"),
        Metric("steps_per_update", "transitions", "transitions per update so far, since `learner.learning_starts`"),
        Metric("elapsed_seconds", "s", "wall-clock time so far, across resumes"),
        Metric("steps_per_second", "1/s", "transitions per second since the last row"),
        Metric("updates_per_second", "1/s", "updates per second since the last row"),
    ),
    "Actors": (
        Metric("episodes", "episodes", "training episodes that have ended so far"),
        Metric("return_mean", "points", "mean score of the episodes since the last row; null if none ended"),
        Metric("return_best", "points", "highest score of a training episode so far"),
        Metric("game_steps_mean", "steps", "mean length of the episodes since the last row; null if none ended"),
        Metric("epsilon", "fraction", "fraction of random actions; null if every actor has its own (`actor.ladder`)"),
    ),
    "Evaluation": (
        Metric("evaluation_mean", "points", "mean score of the evaluation made since the last row; null if none was"),
        Metric("evaluation_t", "transitions", "clock t of the weights in that evaluation; null if none was made"),
    ),
    "Learner": (
        Metric("loss", "", "mean loss of the updates since the last row"),
        Metric("mean_q", "", "mean Q(s, a) over the batches since the last row"),
        Metric("gradient_norm", "", "mean gradient norm before clipping, since the last row"),
        Metric("learner_waiting", "fraction", "fraction of the last second spent waiting for a batch"),
    ),
    "Schedules": (
        Metric("alpha", "", "sampling exponent α: probability ∝ priority^α"),
        Metric("beta", "", "exponent β of the importance weights"),
        Metric("gamma", "", "replacing exponent γ: candidates are sampled ∝ priority^−γ"),
    ),
    "Replay": (
        Metric("stored", "transitions", "transitions in the replay"),
        Metric("fill", "fraction", "fraction of the capacity in use"),
        Metric("age_mean", "transitions", "mean age of the stored transitions: t minus the t of insertion"),
        Metric("age_deciles", "transitions", "minimum, nine deciles and maximum of the ages"),
        Metric("age_histogram", "transitions", "edges of equally wide bins, and counts"),
        Metric("priority_mean", "", "mean priority of the stored transitions"),
        Metric("priority_deciles", "", "minimum, nine deciles and maximum of the priorities"),
        Metric("priority_histogram", "", "edges of logarithmically spaced bins, and counts"),
        Metric("priorities_updated", "transitions", "priorities updated by the learner so far"),
        Metric("priorities_stale", "transitions", "priorities received for transitions that had been replaced"),
        Metric("replaced", "transitions", "stored transitions replaced so far"),
        Metric("replaced_age", "transitions", "sum of their ages"),
        Metric("replaced_priority", "", "sum of their priorities"),
        Metric("replaced_age_mean", "transitions", "mean age of those replaced since the last row; null if none"),
        Metric("replaced_priority_mean", "", "mean priority of those replaced since the last row; null if none"),
        Metric("quarantined", "transitions", "stored transitions evicted so far because they could not be used"),
    ),
    "Recycling": (
        Metric("rounds_opened", "rounds", "recycling rounds opened so far"),
        Metric("rounds_closed", "rounds", "rounds in which every candidate was answered"),
        Metric("rounds_expired", "rounds", "rounds that ended before every candidate was answered"),
        Metric("candidates_drawn", "transitions", "candidates sampled for all rounds"),
        Metric("candidates_applied", "transitions", "candidates whose result was stored in their slot"),
        Metric("candidates_stale", "transitions", "candidates that had been replaced when their result arrived"),
        Metric("candidates_lost", "transitions", "candidates without a result when their round ended"),
        Metric("answers_late", "transitions", "results for a round that had ended, or received twice"),
        Metric("recycled", "transitions", "recycled transitions stored so far"),
        Metric("recycled_gain", "", "sum over them: own priority minus the priority of the replaced transition"),
        Metric("chains", "chains", "chains of steps from re-entered states, in rounds that have ended"),
        Metric("chain_steps", "steps", "environment steps of these chains"),
        Metric("chain_steps_stored", "transitions", "steps after the first of a chain, stored as new transitions"),
        Metric("chain_steps_dropped", "transitions", "steps after the first of a chain and after the end of the run"),
        Metric("chain_steps_late", "steps", "steps of chains that were received after the end of their round"),
        Metric("chain_reward", "", "sum of the rewards in these chains, without discount"),
        Metric(
            "chain_reward_best",
            "",
            "greatest reward of one of these chains, at least 0; clipped where training clips rewards",
        ),
        Metric("chain_reward_mean", "", "mean reward of the chains since the last row; null if none ended"),
        Metric("depth_mean", "steps", "mean depth of stored transitions from recycling: recycled steps since play"),
        Metric("depth_max", "steps", "maximum depth of a stored transition; 0 if all are played"),
        Metric("sampled", "transitions", "transitions in all batches so far"),
        Metric("sampled_recycled", "transitions", "of these, transitions from recycling"),
        Metric("sampled_recycled_share", "fraction", "their share since the last row; null if nothing was sampled"),
    ),
    "Processes": (
        Metric("actors", "processes", "actors in the run"),
        Metric("policy_age_mean", "updates", "updates that were due at insertion, but not in the acting policy: mean"),
        Metric("policy_age_p95", "updates", "95th percentile of that age since the last row"),
        Metric("traffic_sent", "transitions", "transitions sent by the actors, each counted once"),
        Metric("traffic_received", "transitions", "transitions received by the replay, each counted once"),
        Metric("traffic_inserted", "transitions", "transitions inserted"),
        Metric("traffic_refused", "transitions", "transitions rejected: after the last step, or invalid"),
        Metric(
            "traffic_lost",
            "transitions",
            "transitions sent but neither inserted nor rejected, which cannot be sent again: their actor has ended, or "
            "has discarded them when they were acknowledged by a replay that crashed",
        ),
        Metric("traffic_bad_actions", "transitions", "transitions rejected for an action that does not exist"),
        Metric("traffic_bad_frames", "transitions", "transitions rejected for the size or checksum of a frame"),
        Metric("traffic_bad_observations", "transitions", "transitions rejected for an observation that is not finite"),
        Metric("traffic_bad_rewards", "transitions", "transitions rejected for a reward beyond `env.reward_limit`"),
        Metric("traffic_bad_steps", "transitions", "transitions rejected for more steps than `actor.n_steps`"),
        Metric("traffic_bad_priorities", "transitions", "transitions rejected for an impossible TD error"),
        Metric("traffic_bad_snapshots", "transitions", "transitions rejected for the size of their snapshot"),
        Metric("traffic_duplicate_chunks", "chunks", "chunks received more than once"),
        Metric("traffic_gaps", "chunks", "chunks received before their predecessor"),
        Metric("traffic_overruns", "chunks", "chunks received beyond `system.in_flight` of their actor"),
        Metric("traffic_dropped_requests", "requests", "requests for batches in excess of `system.prefetch`"),
        Metric("traffic_unusable", "transitions", "transitions in batches that the learner could not train on"),
        Metric("traffic_candidates_reissued", "transitions", "candidates reassigned after their actor left"),
        Metric("traffic_candidates_failed", "transitions", "candidates whose state could not be re-entered"),
        Metric("traffic_candidates_given_up", "transitions", "candidates given up after two actors left"),
        Metric("traffic_malformed", "messages", "messages that could not be decoded"),
        Metric("traffic_refused_messages", "messages", "messages decoded but rejected as invalid"),
        Metric("traffic_stale_eras", "messages", "answers to requests sent before a restart of the replay"),
        Metric("traffic_strangers", "messages", "messages from processes that were not members of the run"),
        Metric("traffic_joins", "joins", "joins, repeated ones included"),
        Metric("traffic_refused_joins", "joins", "joins that were rejected"),
        Metric("traffic_expired_leases", "processes", "processes that were silent for longer than `system.lease`"),
    ),
}
"""The keys of `metrics.jsonl`, by section. The last section and `learner_waiting` are absent in single-process runs."""

_GROUPS = {"Evaluation": "eval"}  # sections whose group in TensorBoard and the trackers is not their own name
_TAGS = {
    metric.name: f"{_GROUPS.get(title, title.lower())}/{metric.name}"
    for title, section in METRICS.items()
    for metric in section
}

EVALUATION_METRICS = (
    Metric("t", "transitions", "clock t of the evaluated weights"),
    Metric("games", "episodes", "number of episodes"),
    Metric("scores", "points", "score of each episode"),
    Metric("steps", "steps", "length of each episode"),
    Metric("mean", "points", "mean score"),
    Metric("median", "points", "median score"),
)
"""The keys of `evaluations.jsonl`."""


def tag_of(name: str) -> str:
    """Return the name of a metric in TensorBoard and in trackers, such as "learner/loss"; unknown names stay."""
    return _TAGS.get(name, name)


def metric_names() -> set[str]:
    """Return every key of `metrics.jsonl`."""
    return {metric.name for section in METRICS.values() for metric in section}
