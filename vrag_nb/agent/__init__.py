"""The agent: grammar, geometry, environment, trajectories, policies and the drivers that run them."""
