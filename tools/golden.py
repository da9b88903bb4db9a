# ruff: noqa: E402
"""Whether Detent still writes the bytes that it wrote: record what it writes for small models, and compare.

    python -m tools.golden compare            every case, about three minutes
    python -m tools.golden compare --quick    a cross-section, about fifteen seconds
    python -m tools.golden compare --only 'recipe/cnn/*' --keep /tmp/written
    python -m tools.golden record             after a change of bytes that is meant, and proved right

Everything goes through the command line of Detent, as a user's work does, so that the insides are free to move. A case
is a name and what came out: the hash of every byte of the files that were written, or exit code and class of the error.
Of JSON that is printed only the names, numbers and truth values count, not the sentences and not the seconds.

Bytes depend on the processor and on the versions of the libraries, so the record says where it was made: elsewhere
`compare` ends with code 77 and compares nothing (record there first, at the older commit).
"""

from __future__ import annotations

import os

# Sums depend on how a product of matrices is split among threads; this must be said before numpy is imported.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"
os.environ["DETENT_TRUST"] = "1"  # these models are our own: no process to try each of them in first

import argparse
import contextlib
import hashlib
import importlib.metadata
import io
import json
import platform
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from PIL import Image
from tools.golden_models import MODELS

RECORD = Path(__file__).with_name("golden.json")
ELSEWHERE = 77
DIGITS = 20
ERRORS = ("UsageError", "ModelError", "DataError", "OutputError")
LIBRARIES = ("numpy", "onnx", "onnx-ir", "onnxruntime", "numba", "ml-dtypes", "pillow")

FEW = "samples=12,rows=16,iterations=8,batch=32"
"""Gradient methods learn this little here: what counts is that they do the same, not that they do it well."""
TWINS = {"": None, "_ADAROUND": f"AdaRound:{FEW}", "_ADAQUANT": f"AdaQuant:{FEW}"}
INTEGER_RECIPES = ("XINT8", "A8W8", "A16W8", "S8S8_AAWS", "U8S8_AAWS", "S16S8_ASWS", "U16S8_AAWS")
FLOAT_RECIPES = (
    "FP16", "BF16", "BFP16", "MX4", "MX6", "MX9", "MXINT8", "MXFP8E5M2", "MXFP8E4M3", "MXFP6E3M2", "MXFP6E2M3",
    "MXFP4E2M1", "BF16_MIXED_BFP16", "BF16_MIXED_MXINT8",
)  # fmt: skip
LONE_RECIPES = (
    "VINT8", "U8U8_AAWA", "INT8_CNN_DEFAULT", "INT8_TRANSFORMER_DEFAULT", "INT16_CNN_DEFAULT",
    "INT16_TRANSFORMER_DEFAULT", "UINT8_DYNAMIC_QUANT", "MATMUL_NBITS", "S16S16_MIXED_S8S8", "BF16_BFP16",
    "BF16_MXINT8", "MX9_INT8",
)  # fmt: skip
ACCURATE_RECIPES = tuple(f"INT{bits}_{kind}_ACCURATE" for bits in (8, 16) for kind in ("CNN", "TRANSFORMER"))
PLAIN_RECIPES = (*INTEGER_RECIPES, *FLOAT_RECIPES, *LONE_RECIPES)
FORMATS = ("qdq", "qoperator", "extended-qdq", "vitis-qdq", "fix-neuron", "cast", "bfloat16")
METHODS = (
    "MinMSE", "MinMSE:mode=MostCommon", "MinMSE:mode=Percentile,percentile=99", "NonOverflow", "MinMax",
    "MinMax:moving_average=true", "Percentile", "Percentile:percentile=99", "LayerwisePercentile",
    "LayerwisePercentile:candidates=97/99.9,metric=mse", "Entropy", "Entropy:bins=128,quantized_bins=64",
    "Distribution", "Distribution:scenario=p3",
)  # fmt: skip
REFINEMENTS = (
    "none", "BiasCorrection", "BiasCorrection:samples=4", "Rounding:rows=16", "Rounding:rows=16,rescale=true", "Gptq",
    "Gptq:order=natural,block=8", f"AdaRound:{FEW}",
    f"AdaRound:{FEW},early_stop=true,selective_update=true,output_rounded=true,quantized_share=0.5",
    f"AdaRound:{FEW},penalty=0.01,beta=10/3", f"AdaQuant:{FEW}",
    f"AdaQuant:{FEW},update_bias=false,learning_rate=0.001",
)  # fmt: skip
EQUALIZATIONS = (
    "none", "GlobalEqualization", "GlobalEqualization:absorb=true", "CrossLayer", "CrossLayer:steps=3,absorb=true",
    "CrossLayer:steps=-1", "CrossLayer:threshold=0,append_bias=false",
)  # fmt: skip
CONVERTERS = (
    "float", "qdq", "extended-qdq", "vitis-qdq", "fix-neuron", "qoperator", "int8", "uint8", "int16", "uint16",
    "int16-bias", "without-qdq-between:pairs=Conv/Clip+Add/Conv+MatMul/Add", "float16", "float32", "bfloat16",
    "bfloat16-clip", "opset:version=21", "nhwc", "fixed-shapes:batch=2", "unique-initializers",
    "inputs-without-initializers", "finite-weights",
)  # fmt: skip
SOURCES: dict[str, tuple[str, ...] | None] = {
    "float": None,
    "xint8": ("--recipe", "XINT8"),
    "a16w8": ("--recipe", "A16W8"),
    "u8s8": ("--recipe", "U8S8_AAWS", "--set", "weights.granularity=per_channel"),
    "extended": ("--recipe", "U16S8_AAWS", "--format", "extended-qdq"),
    "vitis": ("--recipe", "XINT8", "--format", "vitis-qdq"),
    "fix-neuron": ("--recipe", "XINT8", "--activations", "int8", "--format", "fix-neuron"),
    "qoperator": ("--recipe", "U8S8_AAWS", "--format", "qoperator"),
    "bf16": ("--recipe", "BF16"),
    "bfloat16": ("--recipe", "BF16", "--format", "bfloat16"),
    "fp16": ("--recipe", "FP16"),
    "mx": ("--recipe", "MXFP8E4M3"),
}
"""What the converters are given: how it was quantized."""

OPTIONS: dict[str, tuple[str, ...]] = {
    "target-cpu": ("--target", "cpu"),
    "target-vaiml": ("--target", "npu-vaiml"),
    "activations-int16": ("--recipe", "A8W8", "--activations", "int16"),
    "opset-21": ("--opset", "21"),
    "search-ranges": ("--search-ranges",),
    "search-ranges-a8w8": ("--recipe", "A8W8", "--search-ranges"),
    "dpu": ("--rounding", "dpu"),
    "dpu-adaround": ("--rounding", "dpu", "--refine", f"AdaRound:{FEW}"),
    "smooth": ("--recipe", "A8W8", "--smooth", "0.5"),
    "smooth-nbits": ("--recipe", "MATMUL_NBITS", "--smooth", "0.5"),
    "gptq-nbits": ("--recipe", "MATMUL_NBITS", "--set", "weights.granularity=per_group:8", "--refine", "Gptq"),
    "no-equalize": ("--no-equalize",),
    "no-bias-correction": ("--no-bias-correction",),
    "memory": ("--refine", "Rounding", "--memory", "1MB"),
    "op-types": ("--op-types", "Conv"),
    "exclude": ("--exclude", "node_c*_1*"),
    "include": ("--include", "node_c*"),
    "limit-seed-batch": ("--limit", "5", "--seed", "3", "--batch", "1"),
    "two-threads": ("--threads", "2"),
    "per-channel": ("--recipe", "A8W8", "--set", "weights.granularity=per_channel"),
    "per-channel-asymmetric": (
        *("--recipe", "U8U8_AAWA", "--set", "weights.granularity=per_channel", "--set", "weight_method=MinMSE"),
    ),
    "int4": ("--recipe", "A8W8", "--set", "weights.type=int4", "--set", "weights.granularity=per_channel"),
    "uint4-group": (
        "--recipe",
        "U8U8_AAWA",
        "--set",
        "weights=uint4",
        "--set",
        "weights.granularity=per_group:4",
        "--opset",
        "21",
    ),
    "float8": ("--recipe", "A8W8", "--activations", "float8_e4m3", "--set", "weights=float8_e4m3"),
    "float8-distribution": (
        *("--recipe", "A8W8", "--activations", "float8_e5m2", "--set", "weights=float8_e5m2"),
        *("--method", "Distribution"),
    ),
    "weights-alone": ("--recipe", "A8W8", "--set", "activations=float", "--set", "biases=float"),
    "activations-alone": ("--recipe", "A8W8", "--set", "weights=float", "--set", "biases=float"),
    "float-biases": ("--recipe", "A8W8", "--set", "biases=float"),
    "int16-biases": ("--recipe", "A8W8", "--set", "biases.type=int16"),
    "clip-outputs": ("--set", "clip_outputs=true"),
    "weight-pairs": ("--set", "weight_pairs=true"),
    "dedicated-pairs": ("--set", "dedicated_pairs=true"),
    "all-operators": ("--set", "all_operators=true"),
    "more-operators": ("--recipe", "A8W8", "--set", "more_operators=Tanh,Erf"),
    "constants-as-activations": ("--recipe", "A16W8", "--set", "constants_as_activations=false"),
    "fuse-nothing": ("--set", "fuse=[]"),
    "also-clip-to-relu": ("--set", "also=clip_to_relu"),
    "dynamic-int8": ("--recipe", "UINT8_DYNAMIC_QUANT", "--set", "weights.granularity=per_channel"),
    "overrides": ("--recipe", "overrides.toml"),
    "random-data": (),
}

VERBS: dict[str, tuple[str, ...]] = {
    "inspect": ("inspect", "{quantized}", "--nodes", "--json"),
    "check": ("check", "{quantized}", "--target", "{device}", "--json"),
    "compare": ("compare", "{model}", "{quantized}", "--data", "{data}", "--threads", "1", "--json"),
    "evaluate": ("evaluate", "{model}", "{quantized}", "--data", "{data}", "--threads", "1", "--json"),
    "emulate": ("emulate", "{quantized}", "--data", "{data}", "--out", "{out}", "--rounding", "dpu", "--json"),
    "dump": ("dump", "{quantized}", "--data", "{data}", "--out", "{out}", "--float", "--json"),
    "infer": ("infer", "{quantized}", "--data", "{data}", "--out", "{out}", "--threads", "1"),
    "sensitivity": (
        *("sensitivity", "{model}", "--calib", "{data}", "--recipe", "{recipe}", "--threads", "1", "--json"),
        *("--max-error", "-25dB", "--toml", "{out}/proposed.toml"),
    ),
    "mix": (
        *("mix", "{model}", "--calib", "{data}", "--mean-bits", "6", "--threads", "1", "--json"),
        *("--toml", "{out}/mixed.toml"),
    ),
    "tune": (
        *(
            "tune",
            "{model}",
            "{out}/tuned.onnx",
            "--calib",
            "many-{data}",
            "--max-drop",
            "90",
            "--threads",
            "1",
            "--json",
        ),
    ),
    "stats": ("stats", "saved.stats", "--json"),
}

READER = """
import numpy as np
class Reader:
    def __init__(self): self.rewind()
    def rewind(self): self.left = iter([{"image": x[None]} for x in np.load("cnn.npz")["image"]])
    def get_next(self): return next(self.left, None)
"""
SCRIPTS = {
    "quark-{recipe}": """
from quark.onnx import ModelQuantizer
from quark.onnx.quantization.config import Config, get_default_config
config = Config(global_quant_config=get_default_config("{recipe}"))
ModelQuantizer(config).quantize_model("cnn.onnx", "out/script.onnx", Reader())
""",
    "quark-custom": """
from quark.onnx import CalibrationMethod, Config, ModelQuantizer, PowerOfTwoMethod, QuantFormat, QuantType
from quark.onnx.quantization.config.config import QuantizationConfig
quant = QuantizationConfig(calibrate_method=CalibrationMethod.Percentile, activation_type=QuantType.QUInt8,
    weight_type=QuantType.QInt8, quant_format=QuantFormat.QDQ, include_cle=True,
    extra_options={"CLESteps": 2, "ActivationSymmetric": False, "WeightSymmetric": True})
ModelQuantizer(Config(global_quant_config=quant)).quantize_model("cnn.onnx", "out/script.onnx", Reader())
""",
    "vai-q-onnx": """
import vai_q_onnx
vai_q_onnx.quantize_static("cnn.onnx", "out/script.onnx", Reader(), quant_format=vai_q_onnx.QuantFormat.QDQ,
    calibrate_method=vai_q_onnx.PowerOfTwoMethod.MinMSE, activation_type=vai_q_onnx.QuantType.QUInt8,
    weight_type=vai_q_onnx.QuantType.QInt8, enable_ipu_cnn=True, extra_options={"ActivationSymmetric": True})
""",
    "onnxruntime-static": """
from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
quantize_static("cnn.onnx", "out/script.onnx", Reader(), quant_format=QuantFormat.QOperator,
    activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, per_channel=True,
    calibrate_method=CalibrationMethod.Entropy)
""",
    "onnxruntime-dynamic": """
from onnxruntime.quantization import QuantType, quantize_dynamic
quantize_dynamic("cnn.onnx", "out/script.onnx", weight_type=QuantType.QUInt8)
""",
}

OVERRIDES = """
base = "A8W8"
[[overrides]]
nodes = ["node_conv_0", "node_add*"]
activations = "int16"
[[overrides]]
op_types = ["Gemm", "ConvTranspose"]
leave_float = true
[[overrides]]
tensors = ["relu*", "concat*"]
range = [-1.0, 5.0]
"""

_OUT = "out/bad.onnx"
_GOOD = ("quantize", "cnn.onnx", _OUT, "--calib", "cnn.npz")
BAD: dict[str, tuple[str, ...]] = {
    "no-command": ("quantise",),
    "no-model": ("quantize",),
    "missing-model": ("quantize", "absent.onnx", _OUT),
    "folder-as-model": ("quantize", "texts", _OUT),
    "broken-model": ("quantize", "broken.onnx", _OUT),
    "empty-model": ("quantize", "empty.onnx", _OUT),
    "truncated-model": ("quantize", "truncated.onnx", _OUT),
    "invalid-model": ("quantize", "invalid.onnx", _OUT),
    "nan-weights": ("quantize", "nan.onnx", _OUT, "--calib", "cnn.npz"),
    "quantized-already": ("quantize", "cnn-xint8.onnx", _OUT, "--calib", "cnn.npz"),
    "missing-data": ("quantize", "cnn.onnx", _OUT, "--calib", "absent"),
    "empty-folder": ("quantize", "cnn.onnx", _OUT, "--calib", "nothing"),
    "folder-of-texts": ("quantize", "cnn.onnx", _OUT, "--calib", "texts"),
    "broken-array": ("quantize", "cnn.onnx", _OUT, "--calib", "broken.npy"),
    "wrong-shape": ("quantize", "cnn.onnx", _OUT, "--calib", "wrong_shape.npy"),
    "wrong-input-names": ("quantize", "bert.onnx", _OUT, "--calib", "cnn.npz"),
    "nan-data": ("quantize", "cnn.onnx", _OUT, "--calib", "nan.npy"),
    "unknown-recipe": (*_GOOD, "--recipe", "XINT9"),
    "missing-recipe-file": (*_GOOD, "--recipe", "absent.toml"),
    "broken-recipe-file": (*_GOOD, "--recipe", "broken.toml"),
    "unknown-field": (*_GOOD, "--set", "wieghts.granularity=per_channel"),
    "set-without-value": (*_GOOD, "--set", "weights"),
    "set-wrong-type": (*_GOOD, "--set", "smooth=much"),
    "unknown-target": (*_GOOD, "--target", "npu"),
    "unknown-method": (*_GOOD, "--method", "Best"),
    "bad-method-setting": (*_GOOD, "--method", "Percentile:percentile=101"),
    "unfit-method": (*_GOOD, "--recipe", "A8W8", "--method", "NonOverflow"),
    "unknown-format": (*_GOOD, "--format", "onnx"),
    "unfit-format": (*_GOOD, "--recipe", "BFP16", "--format", "qdq"),
    "unknown-activations": (*_GOOD, "--activations", "int9"),
    "unknown-refinement": (*_GOOD, "--refine", "Luck"),
    "bad-refinement-setting": (*_GOOD, "--refine", "AdaRound:iterations=0"),
    "unknown-equalization": (*_GOOD, "--equalize-with", "Sideways"),
    "contradicting-equalization": (*_GOOD, "--no-equalize", "--equalize-with", "CrossLayer"),
    "contradicting-refinement": (*_GOOD, "--no-bias-correction", "--refine", "Rounding"),
    "smooth-too-large": (*_GOOD, "--smooth", "2"),
    "bad-memory": (*_GOOD, "--memory", "much"),
    "bad-shape": (*_GOOD, "--fix-shape", "image=1,x,16,16"),
    "unknown-input-shape": (*_GOOD, "--fix-shape", "picture=1,3,16,16"),
    "pattern-without-node": (*_GOOD, "--exclude", "absent*"),
    "everything-excluded": (*_GOOD, "--exclude", "*"),
    "negative-limit": (*_GOOD, "--limit", "0"),
    "no-output": ("quantize", "cnn.onnx", "--calib", "cnn.npz"),
    "output-in-missing-folder": ("quantize", "cnn.onnx", "absent/bad.onnx", "--calib", "cnn.npz"),
    "output-is-model": ("quantize", "cnn.onnx", "cnn.onnx", "--calib", "cnn.npz"),
    "stats-of-another-model": (*_GOOD[:3], "--stats", "saved-bert.stats"),
    "stats-are-no-stats": (*_GOOD[:3], "--stats", "broken.npy"),
    "unknown-option": (*_GOOD, "--quick"),
    "convert-to-nothing": ("convert", "cnn.onnx", _OUT),
    "convert-unknown": ("convert", "cnn.onnx", _OUT, "--to", "int3"),
    "convert-twice": ("convert", "cnn.onnx", _OUT, "--to", "float16", "--to", "float16"),
    "convert-contradiction": ("convert", "cnn.onnx", _OUT, "--to", "float16", "--to", "bfloat16"),
    "check-unknown-device": ("check", "cnn-xint8.onnx", "--target", "tpu"),
    "inspect-broken": ("inspect", "broken.onnx"),
    "emulate-float": ("emulate", "cnn.onnx", "--data", "cnn.npz"),
    "infer-without-data": ("infer", "cnn.onnx", "--out", "out"),
    "dump-to-full-folder": ("dump", "cnn-xint8.onnx", "--out", "texts"),
    "mix-without-goal": ("mix", "cnn.onnx", "--calib", "cnn.npz"),
    "tune-without-data": ("tune", "cnn.onnx", _OUT),
    "evaluate-missing": ("evaluate", "absent.onnx", "--data", "cnn.npz"),
    "stats-missing": ("stats", "absent.stats"),
    "recipes-unknown": ("recipes", "XINT9"),
    "run-missing-script": ("run", "absent.py"),
    "run-unsupported-option": ("run", "unsupported.py"),
}


@dataclass(frozen=True)
class Case:
    """One run of the command line, in a folder with all models and data. What it writes goes to `out`."""

    name: str
    arguments: tuple[str, ...]
    printed: bool = False  # JSON on standard output counts too


def cases() -> Iterator[Case]:
    """Yield every case, in an order in which what one needs is there before it."""
    yield from _recipe_cases()
    for model in MODELS:
        for fmt in FORMATS:
            for recipe in ("XINT8", "VINT8", "A8W8", "U16S8_AAWS", "BF16", "MXINT8")[:: 1 if model == "cnn" else 3]:
                yield _quantizing(f"format/{model}/{fmt}/{recipe}", model, "--recipe", recipe, "--format", fmt)
    for method in METHODS:
        for model, recipe in (("cnn", "XINT8"), ("detector", "A8W8"), ("convolutions", "U8S8_AAWS"), ("bert", "A8W8")):
            yield _quantizing(f"method/{model}/{recipe}/{method}", model, "--recipe", recipe, "--method", method)
    for refinement in REFINEMENTS:
        for model, recipe in (("cnn", "XINT8"), ("detector", "A8W8"), ("convolutions", "XINT8"), ("bert", "U8S8_AAWS")):
            name = f"refine/{model}/{recipe}/{refinement}"
            yield _quantizing(name, model, "--recipe", recipe, "--refine", refinement)
    for equalization in EQUALIZATIONS:
        for model, recipe in (("cnn", "XINT8"), ("convolutions", "A8W8"), ("detector", "XINT8")):
            name = f"equalize/{model}/{recipe}/{equalization}"
            yield _quantizing(name, model, "--recipe", recipe, "--equalize-with", equalization)
    for index, (option, arguments) in enumerate(OPTIONS.items()):
        for model in ("cnn", ("detector", "convolutions", "bert")[index % 3]):
            yield _quantizing(f"option/{model}/{option}", model, *arguments)
    pictures = ("quantize", "cnn.onnx", "out/written.onnx", "--calib", "pictures", "--threads", "1")
    yield Case("option/cnn/pictures", (*pictures, "--mean", "120,128,130", "--std", "60", "--size", "16"))
    yield Case("option/cnn/statistics", ("quantize", "cnn.onnx", "out/written.onnx", "--stats", "saved.stats"))
    yield Case("option/cnn/batch", (*pictures[:4], "cnn.npz", *pictures[5:], "--fix-shape", "image=4,3,16,16"))
    yield from _converter_cases()
    yield from _verb_cases()
    for name in SCRIPTS:
        recipes = (*INTEGER_RECIPES, "BF16", "MXINT8") if "{" in name else ("",)
        for recipe in recipes:
            path = name.format(recipe=recipe)
            yield Case(f"script/{path}", ("run", f"{path}.py"))
    for name, arguments in BAD.items():
        yield Case(f"bad/{name}", arguments)


def _recipe_cases() -> Iterator[Case]:
    for name in (*PLAIN_RECIPES, *ACCURATE_RECIPES):
        yield Case(f"toml/{name}", ("recipes", name, "--toml"), printed=True)
        learn = ("--refine", TWINS["_ADAROUND"]) if name in ACCURATE_RECIPES else ()
        for model in MODELS if name in INTEGER_RECIPES else ("cnn", "bert"):
            yield _quantizing(f"recipe/{model}/{name}", model, "--recipe", name, *learn)
    for names, endings in ((INTEGER_RECIPES, ("_ADAROUND", "_ADAQUANT")), (FLOAT_RECIPES, ("_ADAQUANT",))):
        for name in names:
            for ending in endings:
                yield Case(f"toml/{name}{ending}", ("recipes", name + ending, "--toml"), printed=True)
                case = f"recipe/cnn/{name}{ending}"
                yield _quantizing(case, "cnn", "--recipe", name + ending, "--refine", str(TWINS[ending]))


def _converter_cases() -> Iterator[Case]:
    for model, sources in (("cnn", tuple(SOURCES)), ("bert", ("float", "u8s8", "bf16", "mx"))):
        for source in sources:
            for step in CONVERTERS:
                path = f"{model}-{source}.onnx"
                yield Case(f"convert/{model}/{source}/{step}", ("convert", path, "out/written.onnx", "--to", step))
    for model in ("detector", "convolutions"):
        for step in ("float16", "nhwc", "opset:version=21"):
            yield Case(f"convert/{model}/{step}", ("convert", f"{model}.onnx", "out/written.onnx", "--to", step))
    steps = ("--to", "float", "--to", "float16", "--to", "opset:version=21")
    yield Case("convert/cnn/chain", ("convert", "cnn-xint8.onnx", "out/written.onnx", *steps))


def _verb_cases() -> Iterator[Case]:
    for model, source, recipe, device in (
        ("cnn", "xint8", "XINT8", "npu-xint8"),
        ("bert", "u8s8", "U8S8_AAWS", "cpu"),
        ("cnn", "a16w8", "A16W8", "npu-a16w8"),
        ("cnn", "bf16", "BF16", "npu-bf16"),
    ):
        words = {
            "model": f"{model}.onnx",
            "quantized": f"{model}-{source}.onnx",
            "data": f"{model}.npz",
            "recipe": recipe,
            "device": device,
            "out": "out",
        }
        for verb, arguments in VERBS.items():
            if verb in ("mix", "tune", "stats", "sensitivity") and source not in ("xint8", "u8s8"):
                continue
            filled = tuple(argument.format(**words) for argument in arguments)
            yield Case(f"verb/{verb}/{model}/{source}", filled, printed="--json" in filled)


QUICK = (
    "toml/*INT*", "toml/MX*E*", "bad/*", "script/vai*", "script/*static", "script/quark-custom",
    "recipe/cnn/XINT8", "recipe/detector/XINT8", "recipe/convolutions/A8W8", "recipe/bert/A8W8", "recipe/cnn/BF16",
    "recipe/cnn/VINT8", "recipe/bert/U16S8_AAWS", "recipe/cnn/MXINT8", "recipe/cnn/MX9_INT8", "recipe/bert/MATMUL*",
    "recipe/cnn/UINT8_DYNAMIC_QUANT", "recipe/cnn/S16S16*", "recipe/cnn/MXFP4E2M1", "recipe/cnn/FP16",
    "format/cnn/*/VINT8", "format/cnn/*/BF16", "method/convolutions/*:*", "method/cnn/*Most*",
    "refine/convolutions/*:*", "equalize/cnn/*absorb*", "equalize/cnn/*append*", "option/cnn/float8*",
    "option/cnn/*int4*", "option/cnn/overrides", "option/cnn/dpu", "option/cnn/pictures", "option/cnn/smooth",
    "option/cnn/per-channel*", "option/cnn/*pairs", "convert/cnn/xint8/*", "convert/cnn/float/*float*",
    "convert/bert/bf16/*float*", "verb/inspect/cnn/xint8", "verb/check/cnn/xint8", "verb/emulate/cnn/xint8",
)  # fmt: skip


def _quantizing(name: str, model: str, *arguments: str) -> Case:
    data = () if name.endswith("random-data") else ("--calib", f"{model}.npz")
    threads = () if "--threads" in arguments else ("--threads", "1")
    return Case(name, ("quantize", f"{model}.onnx", "out/written.onnx", *data, *threads, *arguments))


def furnish() -> None:
    """Write models, data and broken things into the working folder."""
    for name, (model, data) in MODELS.items():
        onnx.save(model(), f"{name}.onnx")
        onnx.save(model(), f"{name}-float.onnx")
        np.savez(f"{name}.npz", **data())
        parts = [data(seed) for seed in (11, 21, 31, 41)]
        np.savez(f"many-{name}.npz", **{key: np.concatenate([part[key] for part in parts]) for key in parts[0]})
    image = MODELS["cnn"][1]()["image"]
    whole = Path("cnn.onnx").read_bytes()
    for path, content in {
        "broken.onnx": b"not a model at all",
        "empty.onnx": b"",
        "truncated.onnx": whole[: len(whole) // 2],
        "broken.npy": b"not an array",
        "broken.toml": b"weights = [",
        "overrides.toml": OVERRIDES.encode(),
        "texts/readme.txt": b"nothing to see",
        "unsupported.py": (READER + SCRIPTS["quark-custom"].replace("CLESteps", "Nonsense")).encode(),
    }.items():
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_bytes(content)
    Path("nothing").mkdir()
    Path("pictures").mkdir()
    for index, array in enumerate(image):
        pixels = np.clip(array.transpose(1, 2, 0).repeat(2, 0).repeat(2, 1) * 60 + 128, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(f"pictures/{index}.png")
    np.save("wrong_shape.npy", image[:, :2])
    np.save("nan.npy", np.full_like(image, np.nan))
    for name, text in SCRIPTS.items():
        for recipe in (*INTEGER_RECIPES, "BF16", "MXINT8"):
            Path(f"{name.format(recipe=recipe)}.py").write_text(READER + text.replace("{recipe}", recipe))
    model = MODELS["cnn"][0]()
    model.graph.node[3].input[0] = "nowhere"
    Path("invalid.onnx").write_bytes(model.SerializeToString())
    model = MODELS["cnn"][0]()
    weight = onnx.numpy_helper.to_array(model.graph.initializer[1]).copy()
    weight.flat[0] = np.nan
    model.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(weight, model.graph.initializer[1].name))
    onnx.save(model, "nan.onnx")


def prepare_sources(needed: Callable[[str], bool]) -> None:
    """Quantize what converters and verbs are given, as far as the chosen cases need it."""
    for model in ("cnn", "bert"):
        for source, arguments in SOURCES.items():
            if arguments is not None and needed(f"{model}-{source}.onnx"):
                run("quantize", f"{model}.onnx", f"{model}-{source}.onnx", "--calib", f"{model}.npz", *arguments)
    for model, path in (("cnn", "saved.stats"), ("bert", "saved-bert.stats")):
        if needed(path):
            run("quantize", f"{model}.onnx", "out/x.onnx", "--calib", f"{model}.npz", "--save-stats", path)
            Path("out/x.onnx").unlink()


def run(*arguments: str) -> tuple[int, str, str]:
    """Run the command line; return exit code, the class of the error or "", and what it printed."""
    from detent import cli

    app, raised = cli.app, list[BaseException]()

    def watched(**options: Any) -> None:
        try:
            app(**options)
        except SystemExit as stop:  # the command-line library has told its own error
            raised.extend([] if stop.__context__ is None else [stop.__context__])
            raise
        except Exception as error:
            raised.append(error)
            raise

    out, before = io.StringIO(), (sys.argv, signal.getsignal(signal.SIGINT), list(sys.path))
    sys.argv = ["detent", *arguments]
    code, error = 0, ""
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            cli.app = watched  # type: ignore[assignment]
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
            error = _public(type(raised[0])) if code and raised else ""
        except Exception as escaped:  # noqa: BLE001  (a defect, and recorded as one)
            code, error = -1, type(escaped).__name__
        finally:
            cli.app = app
            sys.argv = before[0]
            sys.path[:] = before[2]
            signal.signal(signal.SIGINT, before[1])
    return code, error, out.getvalue()


def _public(error: type) -> str:
    """Return the name of the error's class, or of the class above it that a user can catch by name."""
    return next((each.__name__ for each in error.__mro__ if each.__name__ in ERRORS), error.__name__)


def outcome(case: Case, keep: Path | None = None) -> str:
    """Run a case: the hash of what it wrote and printed, and its exit code and error if it failed."""
    folder = Path("out")
    folder.mkdir()
    code, error, printed = run(*case.arguments)
    digest, count = hashlib.sha256(), 0
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            count += 1
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + _stable(path) + b"\0")
            if keep is not None:
                target = keep / case.name.replace(":", "-") / path.relative_to(folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())
            path.unlink()
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir()
    folder.rmdir()
    if case.printed:
        count += 1
        digest.update(_numbers(printed))
    parts = [digest.hexdigest()[:DIGITS]] if count else []
    return " ".join([*parts, *([f"{code}", error] if code else [])]).strip()


def _stable(path: Path) -> bytes:
    """The bytes of a file; of a record as JSON or TOML, those that do not tell the time or describe in words."""
    if path.suffix == ".json":
        return _numbers(path.read_text())
    if path.suffix == ".toml":
        return _without_words(path.read_text())
    return path.read_bytes()


def _numbers(text: str) -> bytes:
    """What counts in printed JSON; of a recipe as TOML all but its description."""
    try:
        value = json.loads(text)
    except ValueError:
        return _without_words(text)
    return json.dumps(_bare(value), sort_keys=True).encode()


def _without_words(text: str) -> bytes:
    return "\n".join(line for line in text.splitlines() if not line.startswith(("description", "#"))).encode()


def _bare(value: Any) -> Any:
    """JSON with its names, numbers and truth values: sentences may be reworded, and seconds vary."""
    if isinstance(value, dict):
        return {key: _bare(entry) for key, entry in value.items() if "second" not in key and "memory" not in key}
    if isinstance(value, list):
        return [_bare(entry) for entry in value]
    return "" if isinstance(value, str) else value


def environment() -> dict[str, str]:
    """What bytes may depend on, besides Detent."""
    found = {name: importlib.metadata.version(name) for name in LIBRARIES}
    found["python"] = ".".join(platform.python_version_tuple()[:2])
    found["machine"] = f"{platform.system()} {platform.machine()}"
    found["processor"] = _processor()
    found["blas"] = str(np.show_config(mode="dicts")["Build Dependencies"]["blas"]["version"])  # type: ignore[index]
    return found


def _processor() -> str:
    """The model of the processor and a hash of its flags; what kernels are chosen by."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    facts = dict(reversed([[part.strip() for part in line.split(":", 1)] for line in lines if ":" in line]))
    flags = hashlib.sha256(" ".join(sorted(facts.get("flags", "").split())).encode()).hexdigest()[:8]
    return f"{facts.get('model name', platform.processor())} {flags}"


def run_all(chosen: list[Case], keep: Path | None = None, slowest: int = 0) -> dict[str, str]:
    """Run cases in a folder of their own, which is removed."""
    found, seconds, start = {}, {}, Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            furnish()
            Path("out").mkdir()
            prepare_sources(lambda path: any(path in case.arguments for case in chosen))
            for path in Path("out").iterdir():
                path.unlink()
            Path("out").rmdir()
            for case in chosen:
                began = time.perf_counter()
                found[case.name] = outcome(case, keep)
                seconds[case.name] = time.perf_counter() - began
        finally:
            os.chdir(start)
    for name in sorted(seconds, key=lambda name: -seconds[name])[:slowest]:
        print(f"{seconds[name]:7.2f} s  {name}")
    return found


def compare(found: dict[str, str], file: Path, whole: bool) -> int:
    """Say what differs from the record; return the exit code."""
    recorded = json.loads(file.read_text())["cases"]
    names = recorded if whole else [name for name in recorded if name in found]
    differing = [name for name in {**dict.fromkeys(names), **found} if found.get(name) != recorded.get(name)]
    for name in differing:
        print(f"{name}: was {recorded.get(name, 'not there')}, is {found.get(name, 'not there')}")
    same = len(found) - sum(name in found for name in differing)
    print(f"{same} of {len(found)} cases are as recorded." + (f" {len(differing)} differ." if differing else ""))
    return 1 if differing else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.golden", description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=["record", "compare"])
    parser.add_argument("--quick", action="store_true", help="a cross-section of the cases")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="only cases whose names match")
    parser.add_argument("--file", type=Path, default=RECORD, help="the record; default: %(default)s")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep what was written")
    parser.add_argument("--slowest", type=int, default=0, metavar="N", help="name the slowest cases")
    parser.add_argument("--anywhere", action="store_true", help="compare although the environment differs")
    given = parser.parse_args()
    here = environment()
    if given.action == "compare" and not given.anywhere:
        there = json.loads(given.file.read_text())["environment"]
        if here != there:
            for name in sorted({*here, *there}):
                if here.get(name) != there.get(name):
                    print(f"Recorded with {name} {there.get(name)}; here it is {here.get(name)}. Nothing is compared.")
            return ELSEWHERE
    chosen = [
        case
        for case in cases()
        if fnmatch(case.name, given.only) and (not given.quick or any(fnmatch(case.name, each) for each in QUICK))
    ]
    keep = None if given.keep is None else given.keep.absolute()
    file = given.file.absolute()
    found = run_all(chosen, keep, given.slowest)
    if given.action == "compare":
        return compare(found, file, whole=not given.quick and given.only == "*")
    if given.quick or given.only != "*":  # the other cases keep what was recorded
        record = json.loads(file.read_text())
        if record["environment"] != here:
            print(f"{file} was recorded elsewhere: record all cases.")
            return ELSEWHERE
        found = {**record["cases"], **found}
    file.write_text(json.dumps({"environment": here, "cases": found}, indent=0) + "\n")
    print(f"{len(found)} cases are recorded in {file}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
