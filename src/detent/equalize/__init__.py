"""Channels rescaled, so that all of them are rounded equally well."""
