"""Quark's custom operators, of which Detent needs none."""
