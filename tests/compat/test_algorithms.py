from __future__ import annotations

import inspect
import pickle

import pytest

from detent.compat.algorithms import (
    AdaQuantConfig,
    AdaRoundConfig,
    AlgoConfig,
    AutoMixprecisionConfig,
    CLEConfig,
    GPTQConfig,
    refinement_of,
)
from detent.compat.configs import DEFAULT_ADAQUANT_PARAMS, DEFAULT_ADAROUND_PARAMS
from detent.compat.option_rows import ScriptNote
from detent.compat.option_rules import Request
from detent.compat.table import apply_options
from detent.errors import UsageError
from detent.recipe.file import find_recipe
from detent.recipe.recipe import ADAQUANT, ADAROUND
from detent.refinements import AdaQuant, AdaRound, Gptq


def test_the_presets_parameters():
    assert refinement_of(DEFAULT_ADAROUND_PARAMS) == ADAROUND
    assert refinement_of(DEFAULT_ADAQUANT_PARAMS) == ADAQUANT


def test_every_knob():
    found = refinement_of(
        {
            "OptimAlgorithm": "adaround",
            "DataSize": 10,
            "FixedSeed": 5,
            "BatchSize": 3,
            "NumIterations": 20,
            "LearningRate": 0.2,
            "EarlyStop": True,
            "SelectiveUpdate": True,
            "OutputQDQ": True,
            "DropRatio": 0.5,
            "LRAdjust": (0.1, 0.01),
            "RegParam": 0.02,
            "BetaRange": (10, 3),
            "WarmStart": 0.1,
        }
    )
    assert found == AdaRound(
        samples=10,
        seed=5,
        batch=3 * 64,
        iterations=20,
        learning_rate=0.2,
        early_stop=True,
        selective_update=True,
        output_rounded=True,
        quantized_share=0.5,
        learning_rate_above=(0.1, 0.01),
        penalty=0.02,
        beta=(10.0, 3.0),
        warm_start=0.1,
    )
    assert refinement_of({"OptimAlgorithm": "adaquant", "UpdateBias": False}) == AdaQuant(update_bias=False)


def test_the_newer_configurations_say_the_same():
    rounded = refinement_of(AdaRoundConfig(num_iterations=5).options()["FastFinetune"])
    assert rounded == AdaRound(samples=1000, batch=64, iterations=5)
    learned = refinement_of(AdaQuantConfig(update_bias=True, lr_adjust=(1.0, 0.5)).options()["FastFinetune"])
    assert learned == AdaQuant(samples=1000, batch=64, iterations=3000, learning_rate_above=(1.0, 0.5))
    assert refinement_of(AdaRoundConfig(reg_param=0.5).options()["FastFinetune"]).penalty == 0.5


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"NumIteration": 5}, "no key 'NumIteration'. Did you mean 'NumIterations'"),
        ({"OptimAlgorithm": "adam"}, "adaround, adaquant"),
        ({"DropRatio": 2.0}, "quantized_share"),
    ],
)
def test_what_cannot_be_had_is_named(params, message):
    with pytest.raises(UsageError, match=message):
        refinement_of(params)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"OptimDevice": "cuda:0"}, "OptimDevice='cuda:0'"),
        ({"OutputIndex": 2}, "OutputIndex"),
        ({"RefModelPath": "float.onnx"}, "RefModelPath"),
        ({"TargetOpType": ["Conv"]}, "TargetOpType"),
        ({"UpdateBias": True}, "UpdateBias=True: .*adaround"),
        ({"OptimAlgorithm": "adaquant", "WarmStart": 0.5}, "WarmStart=0.5: .*adaquant"),
    ],
)
def test_what_the_result_is_right_without_is_noted(params, message):
    algorithm = {name: value for name, value in params.items() if name == "OptimAlgorithm"}
    with pytest.warns(ScriptNote, match=message):
        assert refinement_of(params) == refinement_of(algorithm)


FIELDS = {
    AdaRoundConfig: "optim_device infer_device fixed_seed data_size batch_size num_batches num_iterations "
    "learning_rate early_stop output_index lr_adjust target_op_type selective_update update_bias output_qdq drop_ratio "
    "mem_opt_level cache_dir log_period ref_model_path dynamic_batch parallel reg_param beta_range warm_start "
    "select_max_mem_layer num_workers pin_memory use_gds",
    AutoMixprecisionConfig: "target_layer_config target_op_type subgraph_json include_layers exclude_layers data_size "
    "metric_output_index metric_distance_fn metric_evaluate_fn metric_default metric_threshold metric_optimize_object "
    "sensitivity_cache_file worker_num dual_quant_nodes no_input_qdq_shared shared_param_mode target_quant_type "
    "act_target_quant_type weight_target_quant_type bias_target_quant_type l2_target auto_mix_use_fast_ft output_index "
    "evaluate_function top1_acc_target num_target target_indices exclude_indices",
    GPTQConfig: "bits block_size group_size perc_damp act_order per_channel mse weight_symmetric",
    CLEConfig: "cle_balance_method cle_steps cle_weight_threshold cle_scale_append_bias cle_scale_use_threshold "
    "cle_total_layer_diff_threshold",
}
"""Quark's fields, in its order: scripts may give them by position."""


@pytest.mark.parametrize("config", FIELDS, ids=lambda config: config.__name__)
def test_configurations_have_quarks_fields(config):
    assert list(inspect.signature(config).parameters) == FIELDS[config].split()


def test_configurations_are_records():
    config = AdaQuantConfig(num_iterations=7, lr_adjust=(1.0, 0.5))
    assert pickle.loads(pickle.dumps(config)) == config
    assert (config.num_iterations, config.learning_rate, config.lr_adjust) == (7, 1e-5, (1.0, 0.5))
    assert repr(GPTQConfig(bits=4)).startswith("GPTQConfig(bits=4, block_size=128")
    config.num_iterations = 8
    assert config.get_options()["FastFinetune"]["NumIterations"] == 8
    assert config.to_dict() == {"name": "adaquant", "num_iterations": 8, "lr_adjust": [1.0, 0.5]}
    assert AlgoConfig.from_dict({"name": "cle", "cle_steps": 2}) == CLEConfig(cle_steps=2)
    with pytest.raises(UsageError, match="adarond"):
        AlgoConfig.from_dict({"name": "adarond"})


def recipe_of(base="A8W8", **options):
    return apply_options(Request(find_recipe(base)), options).recipe


def test_the_switch_for_gptq_and_its_parameters():
    assert recipe_of(UseGPTQ=True).refinement == Gptq(order="natural")
    params = {"PercDamp": 0.05, "BlockSize": 32, "ActOrder": True, "Bits": 8, "MSE": False, "WeightSymmetric": True}
    assert recipe_of(UseGPTQ=True, GPTQParams=params).refinement == Gptq(damping=0.05, block=32, order="activation")
    assert recipe_of(UseGPTQ=False).refinement == recipe_of().refinement
    assert recipe_of(**GPTQConfig().options()).refinement == Gptq(order="natural")


def test_scales_of_groups_and_channels():
    assert recipe_of(UseGPTQ=True, GPTQParams={"GroupSize": 32}).weights.granularity == "per_group:32"
    assert recipe_of(UseGPTQ=True, GPTQParams={"PerChannel": True}).weights.granularity == "per_channel"
    assert recipe_of(UseGPTQ=True, GPTQParams={"GroupSize": -1}).weights == recipe_of().weights


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"UseGPTQ": True, "GPTQParams": {"ActOder": True}}, "ActOrder"),
        ({"UseGPTQ": True, "FastFinetune": {"NumIterations": 3}}, "one of them"),
    ],
)
def test_what_gptq_cannot_do_is_named(options, message):
    with pytest.raises(UsageError, match=message):
        recipe_of(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"GPTQParams": {"Bits": 8}}, "without UseGPTQ=True"),
        ({"UseGPTQ": True, "GPTQParams": {"Bits": 4}}, "Bits=4"),
        ({"UseGPTQ": True, "GPTQParams": {"MSE": True}}, "MSE"),
        ({"UseGPTQ": True, "GPTQParams": {"WeightSymmetric": False}}, "WeightSymmetric"),
    ],
)
def test_what_gptq_does_not_change_is_noted(options, message):
    switch = {name: value for name, value in options.items() if name == "UseGPTQ"}
    with pytest.warns(ScriptNote, match=message):
        assert recipe_of(**options) == recipe_of(**switch)


def test_only_integers():
    with pytest.raises(UsageError, match="integers"):
        recipe_of("BF16", UseGPTQ=True)
