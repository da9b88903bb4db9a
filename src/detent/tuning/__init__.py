"""Tuning: better and better ways to quantize a model, until one loses little enough."""
