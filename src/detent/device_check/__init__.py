"""Whether a device takes a model, node by node, and why not."""
