"""Writing quantized nodes into the graph. The only room that does."""
