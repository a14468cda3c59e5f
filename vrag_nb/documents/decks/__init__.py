"""The nano world: slide decks and reports drawn from tables, with questions whose answers are known exactly."""
