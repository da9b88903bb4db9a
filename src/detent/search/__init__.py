"""Which layers get what: sensitivity of a whole model, proposals that follow from it, and mixed precision by search."""
