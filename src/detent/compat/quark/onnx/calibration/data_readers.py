"""Data readers."""

from detent.compat.readers import CachedDataReader, PathDataReader, RandomDataReader

__all__ = ["CachedDataReader", "PathDataReader", "RandomDataReader"]
