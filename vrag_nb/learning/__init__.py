"""Learning: expert sampling, supervised fine-tuning, rewards, advantages, multi-turn reinforcement learning."""
