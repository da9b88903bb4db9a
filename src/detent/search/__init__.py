"""Searches: what each layer's rounding costs, and which formats are the cheapest that keep to a wanted error."""
