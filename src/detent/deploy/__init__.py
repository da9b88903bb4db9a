"""A folder to copy to the laptop: the model, a program that runs it on the NPU, samples and expected answers."""
