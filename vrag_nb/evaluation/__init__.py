"""Retrieval and answer metrics, the baselines they are compared against, and the runs that write them."""
