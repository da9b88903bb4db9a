"""The commands of `detent`, one module for each, or for two that belong together.

A command is a plain function whose parameters are declared with `options` (one option each) or have the type of an
option group (see `groups`). `detent.cli` puts them together. Heavy imports happen inside the functions, so that --help
answers at once.
"""
