"""Runs AMD Quark's XINT8 preset, its cross-layer equalization off, or any preset as it is.

python quark_worker.py MODEL OUTPUT SAMPLES.npy [PRESET]

Executed by Quark's own Python, and with a preset by `detent run --as-quark` as well.
"""

import resource
import sys

import numpy as np
from onnxruntime.quantization import CalibrationDataReader
from quark.onnx import ModelQuantizer
from quark.onnx.quantization.config import Config, get_default_config

MEMORY = 14 << 30  # its histogram can grow without bound; better an error here than a machine that stands still


class Reader(CalibrationDataReader):
    def __init__(self, name, samples):
        self.items = iter([{name: sample[None]} for sample in samples])

    def get_next(self):
        return next(self.items, None)


def main():
    import onnx

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    model, output, samples, *preset = sys.argv[1:]
    name = onnx.load(model).graph.input[0].name
    config = get_default_config(*preset or ["XINT8"])
    config.include_cle = config.include_cle and bool(preset)
    ModelQuantizer(Config(global_quant_config=config)).quantize_model(model, output, Reader(name, np.load(samples)))


if __name__ == "__main__":
    main()
