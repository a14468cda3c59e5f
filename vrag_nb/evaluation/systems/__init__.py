"""Baselines of the papers, one file each; found by `baselines.find_system` without being named anywhere."""
