"""What a model is for: how its outputs are read, compared with another model's, and judged."""
