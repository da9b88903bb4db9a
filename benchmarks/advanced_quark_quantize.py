"""A user's script in the manner of the Quark tutorials, run as it is: `detent run advanced_quark_quantize.py ...`.

It knows nothing of Detent: it makes the imports and calls of the tutorials, with their flags and their data reader.
"""

import argparse
from pathlib import Path

import numpy as np
import onnxruntime
from onnxruntime.quantization.calibrate import CalibrationDataReader, CalibrationMethod
from onnxruntime.quantization.quant_utils import QuantType
from PIL import Image
from quark.onnx import ModelQuantizer
from quark.onnx.quant_utils import PowerOfTwoMethod
from quark.onnx.quantization.config.config import Config, QuantizationConfig
from quark.onnx.quantization.config.custom_config import DEFAULT_ADAROUND_PARAMS, get_default_config

MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


class ImageDataReader(CalibrationDataReader):
    """The first images of a folder, resized to the model's input without a crop, as the tutorial does it."""

    def __init__(self, model_path: str, folder: str, data_size: int) -> None:
        model_input = onnxruntime.InferenceSession(model_path).get_inputs()[0]
        self.name, (_, self.channels, self.height, self.width) = model_input.name, model_input.shape
        files = sorted(path for path in Path(folder).rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
        self.files = iter(files[:data_size])

    def get_next(self) -> dict[str, np.ndarray] | None:
        path = next(self.files, None)
        return None if path is None else {self.name: self.read(path)}

    def read(self, path: Path) -> np.ndarray:
        mode = "RGB" if self.channels == 3 else "L"
        image = Image.open(path).convert(mode).resize((self.width, self.height))
        pixels = np.atleast_3d(np.asarray(image, np.float32)) / 255
        if self.channels == 3:
            pixels = (pixels - MEAN) / STD
        return pixels.transpose(2, 0, 1)[np.newaxis].astype(np.float32)


def quantization_config(options: argparse.Namespace) -> QuantizationConfig:
    if options.fast_finetune:
        return QuantizationConfig(
            calibrate_method=CalibrationMethod.Percentile,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            include_fast_ft=True,
            extra_options={"Percentile": 99.9999, "FastFinetune": DEFAULT_ADAROUND_PARAMS},
        )
    if options.cross_layer_equalization:
        return QuantizationConfig(
            calibrate_method=PowerOfTwoMethod.MinMSE,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            enable_npu_cnn=True,
            include_cle=True,
            extra_options={"ActivationSymmetric": True},
        )
    return get_default_config("XINT8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_input", required=True)
    parser.add_argument("--model_output", required=True)
    parser.add_argument("--calibration_dataset_path", default="calib_data")
    parser.add_argument("--data_size", type=int, default=100)
    parser.add_argument("--fast_finetune", action="store_true")
    parser.add_argument("--cross_layer_equalization", action="store_true")
    options = parser.parse_args()
    config = Config(global_quant_config=quantization_config(options))
    print(f"The configuration of the quantization is {config}")
    reader = ImageDataReader(options.model_input, options.calibration_dataset_path, options.data_size)
    quantizer = ModelQuantizer(config)
    quantizer.quantize_model(options.model_input, options.model_output, reader)


if __name__ == "__main__":
    main()
