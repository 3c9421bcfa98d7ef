"""Double DQN on CartPole in one file, with the replay of `dpsr_apex`: python examples/dqn_dpsr.py --method dpsr.

The loop is the usual one. What the replay adds are three lines: the snapshot that is stored with a step, `recycle`,
and `update_priorities`.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import dpsr_apex as da


def parse() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description="Double DQN on CartPole, with the replay of dpsr_apex")
    parser.add_argument("--method", default="dpsr", help="dpsr, double, per, per_rank or uniform")
    parser.add_argument("--env", default="CartPole-v1", help="an environment with snapshots and vector observations")
    parser.add_argument("--steps", type=int, default=20_000, help="environment steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--capacity", type=int, default=5_000, help="transitions in the replay")
    parser.add_argument("--recycle-period", type=int, default=500, help="transitions between recycling rounds")
    parser.add_argument("--n-steps", type=int, default=3, help="of the n-step returns")
    parser.add_argument("--discount", type=float, default=0.99)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--learning-starts", type=int, default=500, help="steps before the first update")
    parser.add_argument("--target-period", type=int, default=200, help="steps between updates of the target network")
    parser.add_argument("--exploration", type=float, default=0.3, help="share of the steps until epsilon is final")
    parser.add_argument("--final-epsilon", type=float, default=0.02)
    return parser.parse_args()


class Dqn:
    """An online and a target network, with the update of Double DQN."""

    def __init__(self, size: int, actions: int, learning_rate: float) -> None:
        self.online = make_network(size, actions)
        self.target = make_network(size, actions)
        self.optimizer = torch.optim.Adam(self.online.parameters(), learning_rate)
        self.sync_target()

    def act(self, obs: NDArray[Any]) -> NDArray[np.int64]:
        """Return the greedy action for each observation."""
        with torch.no_grad():
            actions: NDArray[np.int64] = self.online(torch.from_numpy(obs)).argmax(dim=1).numpy()
        return actions

    def deltas(self, batch: da.Batch) -> Tensor:
        """Return the TD error of each row of a batch of tensors."""
        with torch.no_grad():
            best = self.online(batch.next_obs).argmax(dim=1, keepdim=True)
            value = self.target(batch.next_obs).gather(1, best)[:, 0]
            target = batch.rewards + batch.discounts * (1 - batch.terminated) * value
        q: Tensor = self.online(batch.obs).gather(1, batch.actions[:, None])[:, 0]
        deltas: Tensor = target - q
        return deltas

    def td_errors(self, batch: da.Batch) -> Tensor:
        """Return the TD errors of a batch of arrays, without gradients."""
        with torch.no_grad():
            return self.deltas(batch.torch())

    def update(self, batch: da.Batch) -> Tensor:
        """Take one optimizer step; return the TD errors before it."""
        deltas = self.deltas(batch)
        losses = nn.functional.huber_loss(deltas, torch.zeros_like(deltas), reduction="none")
        self.optimizer.zero_grad()
        (batch.weights * losses).mean().backward()
        nn.utils.clip_grad_norm_(self.online.parameters(), 10.0)
        self.optimizer.step()
        return deltas.detach()

    def sync_target(self) -> None:
        """Copy the online network to the target network."""
        self.target.load_state_dict(self.online.state_dict())


def make_network(size: int, actions: int) -> nn.Module:
    """Return a network for vectors."""
    return nn.Sequential(nn.Linear(size, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, actions))


def make_buffer(args: argparse.Namespace, env: da.SnapshotEnv) -> da.ReplayBuffer:
    """Return an empty replay."""
    return da.ReplayBuffer(
        args.capacity,
        env.observation_space,
        env.action_space,
        args.method,
        n_steps=args.n_steps,
        discount=args.discount,
        total_steps=args.steps,
        seed=args.seed,
        recycle_period=args.recycle_period,
    )


def main() -> None:
    """Train, and print the mean score of the last episodes."""
    args = parse()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    rng = np.random.default_rng(args.seed)
    env, recycler = da.make_env(args.env), da.make_env(args.env)
    actions = int(env.action_space.n)
    agent = Dqn(env.observation_space.shape[0], actions, args.learning_rate)
    buffer = make_buffer(args, env)
    scores, score = [], 0.0
    obs, _ = env.reset(seed=args.seed)
    for step in range(1, args.steps + 1):
        epsilon = max(1 - step / (args.exploration * args.steps), args.final_epsilon)
        explores = rng.random() < epsilon
        action = int(rng.integers(actions)) if explores else int(agent.act(obs[np.newaxis])[0])

        snapshot = env.snapshot(with_observation=False)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        buffer.add(obs, action, reward, next_obs, terminated, truncated, snapshot)
        buffer.recycle(recycler, agent.act, agent.td_errors)

        score += reward
        obs = next_obs
        if terminated or truncated:
            scores.append(score)
            score = 0.0
            obs, _ = env.reset()

        if step >= args.learning_starts:
            batch = buffer.sample(args.batch_size)
            td_errors = agent.update(batch.torch())
            buffer.update_priorities(batch.ids, td_errors)
        if step % args.target_period == 0:
            agent.sync_target()
        if step % 1_000 == 0:
            mean = float(np.mean(scores[-20:])) if scores else score
            recycled = int(buffer.counters["recycled"])
            print(f"step {step:,}: mean score {mean:.1f} of the last episodes, {recycled:,} transitions recycled")


if __name__ == "__main__":
    main()
