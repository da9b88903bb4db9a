"""Small networks to rescale, and the check that every value follows its factors and no output changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from detent.equalize.channels import ChannelMap, map_channels
from detent.equalize.equalize import equalize_again
from detent.observe.samples import PendingSample
from tests.models import IMAGE, as_ir, build, info, node, normal, values_of
from tests.prepare.equivalence import random_feeds

IMAGE_INPUT = info("x", IMAGE)


def pending(*arrays: np.ndarray, name: str = "x") -> list[PendingSample]:
    """A sample for each array."""
    return [
        PendingSample(number, f"sample {number}", False, lambda array=array: {name: array})
        for number, array in enumerate(arrays)
    ]


def between_convs(
    middle: Sequence[onnx.NodeProto],
    constants: Mapping[str, Any] | None = None,
    channels: int = 4,
    inputs: Sequence[onnx.ValueInfoProto] = (IMAGE_INPUT,),
    opset: int = 17,
) -> onnx.ModelProto:
    """A Conv from x to c (4 channels, 6x6), what stands between, and a Conv from m to y."""
    weights = {
        "w1": normal(4, 3, 3, 3),
        "b1": normal(4, seed=1),
        "w2": normal(2, channels, 1, 1, seed=2),
        "b2": normal(2, seed=3),
    }
    nodes = [node("Conv", "x w1 b1", "c"), *middle, node("Conv", "m w2 b2", "y")]
    return build(nodes, "y", weights | dict(constants or {}), inputs, opset)


def constants_of(model: ir.Model) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in ir.to_proto(model).graph.initializer}


def assert_close(got: np.ndarray, want: np.ndarray, name: str = "") -> None:
    scale = float(np.abs(want).max(initial=0.0))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * scale, err_msg=name)


def assert_kept(proto: onnx.ModelProto, seed: int = 0, feeds: Mapping[str, np.ndarray] | None = None) -> ChannelMap:
    """Rescale by random factors: outputs stay, and all between them is multiplied by just what the map says."""
    model = as_ir(proto)
    channels = map_channels(model)
    factors = np.random.default_rng(seed).uniform(-2, 2, channels.count)
    unmoved = [0.0] * len(channels.ceilings)
    done = equalize_again(model, [*factors.tolist(), *unmoved])
    assert done.factors == (*factors.tolist(), *unmoved)
    feeds = random_feeds(proto) if feeds is None else feeds
    after = ir.to_proto(model)
    onnx.checker.check_model(after, full_check=True)
    names = [name for each in proto.graph.node if each.op_type != "Constant" for name in each.output]
    was, now = values_of(proto, names, feeds), values_of(after, names, feeds)
    padded = np.append(factors, 0.0)
    for name in names:
        variables = channels.of_value[name]
        by_channel = np.exp(padded[variables]) if variables.size else np.ones(1)
        spread = by_channel.reshape(-1, *[1] * (was[name].ndim - 2)) if was[name].ndim > 1 else 1.0
        assert_close(now[name], was[name] * spread, name)
    for output in proto.graph.output:
        assert_close(now[output.name], was[output.name], output.name)
    return channels
