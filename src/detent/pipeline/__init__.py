"""The way from a float model to a quantized one: `run` has all of it on one page, and each stage is a module here."""
