"""Drawing numbers: the style of every figure, and the charts. Nothing here knows what the numbers are of."""
