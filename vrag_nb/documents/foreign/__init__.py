"""Foreign decks: the same kind of questions on slides that another engine draws, kept for development and testing."""
