"""The nano models: how they are built, what they are trained on, and the training itself."""
