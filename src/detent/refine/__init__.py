"""Weights and biases chosen anew, layer after layer, so that the quantized model answers as the float one did."""
