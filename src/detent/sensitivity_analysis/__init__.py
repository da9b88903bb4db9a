"""Which layers make the error of a quantized model."""
