"""Which preparations, rewrites and rules a target has of its own, by the names that `Recipe.without` takes."""

from __future__ import annotations

DEVICE_REWRITES = (
    "round_leaky_slope",
    "sigmoid_to_hard_sigmoid",
    "scale_hard_sigmoid",
    "scale_pools",
    "scale_reduce_mean",
)
SHIFT_RULES = (
    "align_concat",
    "align_pool",
    "align_pad",
    "align_slice",
    "shift_read",
    "shift_write",
    "shift_cut",
    "shift_bias",
    "hard_sigmoid",
    "shift_swish",
)
ALWAYS = ("fold_batchnorm", "fuse_instance_norm", "fuse_l2_norm", "fuse_gelu", "fuse_layer_norm")


def steps_of(target: str) -> frozenset[str]:
    """The steps that are done without being asked for."""
    own: dict[str, tuple[str, ...]] = {
        "npu-cnn": ("split_to_slice", "reduce_mean_to_pool", "split_global_pool", *DEVICE_REWRITES, *SHIFT_RULES),
        "npu-float-scale": ("split_to_slice", "reduce_mean_to_pool", "align_concat"),
        "npu-vaiml": ("split_to_slice", "batchnorm_to_conv"),
    }
    return frozenset((*ALWAYS, *own.get(target, ())))
