"""DQN of stable-baselines3 on CartPole with the replay of `dpsr_apex`: python examples/sb3_dqn.py --method dpsr.

The hyperparameters are those of RL Zoo, but for a smaller replay, so that transitions are replaced and recycled.
"""

from __future__ import annotations

import argparse

import torch
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

import dpsr_apex as da
from dpsr_apex.sb3 import DpsrDQN


def main() -> None:
    """Train, and print the mean score of 20 episodes."""
    parser = argparse.ArgumentParser(description="DQN of stable-baselines3 with the replay of dpsr_apex")
    parser.add_argument("--method", default="dpsr", help="dpsr, double, per, per_rank or uniform")
    parser.add_argument("--env", default="CartPole-v1", help="an environment with snapshots and vector observations")
    parser.add_argument("--steps", type=int, default=50_000, help="time steps")
    parser.add_argument("--capacity", type=int, default=5_000, help="transitions in the replay")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.set_num_threads(1)
    model = DpsrDQN(
        "MlpPolicy",
        args.env,
        method=args.method,
        replay_settings={"recycle_period": 500},
        learning_rate=2.3e-3,
        buffer_size=args.capacity,
        learning_starts=1_000,
        batch_size=64,
        target_update_interval=10,
        train_freq=256,
        gradient_steps=128,
        exploration_fraction=0.16,
        exploration_final_eps=0.04,
        policy_kwargs={"net_arch": [256, 256]},
        seed=args.seed,
    )
    model.learn(args.steps)

    mean, _ = evaluate_policy(model, Monitor(da.make_env(args.env)), n_eval_episodes=20)
    recycled = int(model.replay_buffer.buffer.counters["recycled"])
    print(f"mean score {mean:.1f} of 20 episodes, {recycled:,} transitions recycled")


if __name__ == "__main__":
    main()
