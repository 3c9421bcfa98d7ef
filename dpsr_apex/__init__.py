"""Double Prioritized State Recycled experience replay for DQN, as an actor-learner system."""

__version__ = "0.1.0"
