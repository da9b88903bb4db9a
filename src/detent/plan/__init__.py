"""Decisions as data: which values are quantized, at which position, and why. Nothing here edits the graph."""
