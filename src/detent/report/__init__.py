"""What was done to a model and what it cost: as data, as JSON and as text in a terminal."""
