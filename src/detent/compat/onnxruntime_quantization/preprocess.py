"""`python -m onnxruntime.quantization.preprocess --input MODEL --output MODEL`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from detent.compat.onnxruntime_quantization.shape_inference import quant_pre_process

_SWITCHES = ("skip_optimization", "skip_onnx_shape", "skip_symbolic_shape", "auto_merge", "guess_output_rank")


def main(arguments: Sequence[str] | None = None) -> None:
    """The function, with its arguments as flags."""
    parser = argparse.ArgumentParser("onnxruntime.quantization.preprocess")
    parser.add_argument("--input", required=True)
    parser.add_argument("--output", required=True)
    for name in (*_SWITCHES, "save_as_external_data", "all_tensors_to_one_file"):
        parser.add_argument(f"--{name}", type=_truth, default=False)
    parser.add_argument("--int_max", type=int, default=2**31 - 1)
    parser.add_argument("--verbose", type=int, default=0)
    parser.add_argument("--external_data_location")
    parser.add_argument("--external_data_size_threshold", type=int, default=1024)
    given = vars(parser.parse_args(arguments))
    quant_pre_process(given.pop("input"), given.pop("output"), **given)


def _truth(text: str) -> bool:
    """True and False as words: `bool` would take any of them for True."""
    try:
        return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
    except KeyError:
        raise argparse.ArgumentTypeError(f"'{text}' is neither True nor False") from None
