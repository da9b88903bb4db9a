"""The tuner: climbs from the cheapest way to quantize a model to better ones, until one loses little enough."""
