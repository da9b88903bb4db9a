"""Users' scripts: they know nothing of Detent, and make the imports and calls that tutorials make."""

READER = """
import numpy as np
from onnxruntime.quantization.calibrate import CalibrationDataReader

class Reader(CalibrationDataReader):
    def __init__(self, count=10):
        rng = np.random.default_rng(5)
        self.data = iter([{"x": rng.standard_normal((1, 3, 8, 8)).astype(np.float32)} for _ in range(count)])

    def get_next(self):
        return next(self.data, None)
"""

PRESET = """
import sys
from quark.onnx import ModelQuantizer
from quark.onnx.quantization.config import Config, get_default_config

model_input, model_output, preset = sys.argv[1:]
config = Config(global_quant_config=get_default_config(preset))
quantizer = ModelQuantizer(config)
if __name__ == "__main__":
    quantizer.quantize_model(model_input, model_output, Reader())
"""

CUSTOM = """
import sys
from onnxruntime.quantization import CalibrationMethod, QuantType
from quark.onnx.quant_utils import PowerOfTwoMethod
from quark.onnx.quantization.quant_utils import VitisQuantType
from quark.onnx.quantization.config.config import Config, QuantizationConfig
from quark.onnx.quantization.api import ModelQuantizer

assert VitisQuantType.QInt8 == QuantType.QInt8
quant_config = QuantizationConfig(calibrate_method=PowerOfTwoMethod.MinMSE,
                                  activation_type=QuantType.QUInt8,
                                  weight_type=VitisQuantType.QInt8,
                                  enable_npu_cnn=True,
                                  extra_options={'ActivationSymmetric': True})
config = Config(global_quant_config=quant_config)
print("The configuration of the quantization is {}".format(config))
ModelQuantizer(config).quantize_model(model_input=sys.argv[1], model_output=sys.argv[2],
                                      calibration_data_reader=Reader())
"""

NEWER = """
import sys
from quark.onnx import CLEConfig, Int8Spec, Int16Spec, ModelQuantizer, QConfig, QLayerConfig

config = QConfig(
    global_config=QLayerConfig(activation=Int8Spec(), weight=Int8Spec()),
    specific_layer_config={QLayerConfig(input_tensors=Int16Spec(), weight=Int8Spec()): ["second"]},
    algo_config=[CLEConfig()],
    extra_options={"PrintSummary": False},
)
ModelQuantizer(config).quantize_model(sys.argv[1], sys.argv[2], Reader())
"""

VAI = """
import sys
import vai_q_onnx

vai_q_onnx.quantize_static(
    sys.argv[1],
    sys.argv[2],
    Reader(),
    quant_format=vai_q_onnx.VitisQuantFormat.FixNeuron,
    calibrate_method=vai_q_onnx.PowerOfTwoMethod.MinMSE,
    input_nodes=[],
    output_nodes=[],
    extra_options=None,)
"""

ONNXRUNTIME = """
import sys
from onnxruntime.quantization import QuantFormat, QuantType, quantize_static, shape_inference

shape_inference.quant_pre_process(sys.argv[1], "prepared.onnx", skip_symbolic_shape=True)
quantize_static("prepared.onnx", sys.argv[2], Reader(), QuantFormat.QDQ, per_channel=True,
                activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8)
"""

IMAGE_SCRIPT = """
import sys
import numpy as np
from quark.onnx import ModelQuantizer
from quark.onnx.quantization.config import Config, get_default_config

class Reader:
    def __init__(self):
        self.images = iter(np.random.default_rng(1).standard_normal((4, 1, 3, 224, 224)).astype(np.float32))

    def get_next(self):
        image = next(self.images, None)
        return None if image is None else {"input": image}

config = Config(global_quant_config=get_default_config("XINT8"))
ModelQuantizer(config).quantize_model(sys.argv[1], sys.argv[2], Reader())
"""

ALL = {"custom": CUSTOM, "newer": NEWER, "vai_q_onnx": VAI, "onnxruntime": ONNXRUNTIME}
