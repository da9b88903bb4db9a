"""Runs one preset of AMD Quark on a model of the zoo. Executed by Quark's own Python, not by ours.

python zoo_quark.py MODEL OUTPUT SAMPLES.npz PRESET
"""

import resource
import sys

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader
from quark.onnx import ModelQuantizer
from quark.onnx.quantization.config import Config, get_default_config

MEMORY = 14 << 30  # its histogram can grow without bound; better an error here than a machine that stands still
CALIBRATION = 32


class Reader(CalibrationDataReader):
    def __init__(self, arrays):
        self.arrays, self.count = arrays, min(CALIBRATION, len(next(iter(arrays.values()))))
        self.rewind()

    def rewind(self):
        self.items = iter([{key: each[i : i + 1] for key, each in self.arrays.items()} for i in range(self.count)])

    def get_next(self):
        return next(self.items, None)


def main():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    model, output, samples, preset = sys.argv[1:]
    present = {value.name for value in onnx.load(model).graph.input}
    arrays = {key: each for key, each in np.load(samples).items() if key in present}
    config = get_default_config(preset)
    ModelQuantizer(Config(global_quant_config=config)).quantize_model(model, output, Reader(arrays))


if __name__ == "__main__":
    main()
