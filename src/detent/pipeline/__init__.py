"""From a float model to a quantized one. `run` names the stages in order; each stage is one module and one value."""
