"""The commands of `detent`, one module each; `detent.cli` puts them together."""
