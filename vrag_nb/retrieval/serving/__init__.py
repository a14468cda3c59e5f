"""The parts of the search server: what is asked and answered, limits, batching, metrics, reloading."""
