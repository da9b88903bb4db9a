"""Running parts of a model, and models on named samples."""
