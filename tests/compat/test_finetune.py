from __future__ import annotations

import pytest

from detent.compat.algorithms import AdaQuantConfig, AdaRoundConfig, refinement_of
from detent.compat.preset_configs import DEFAULT_ADAQUANT_PARAMS, DEFAULT_ADAROUND_PARAMS
from detent.errors import UsageError
from detent.recipe.presets import ADAQUANT, ADAROUND
from detent.refinements import AdaQuant, AdaRound


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
        ({"NumIteration": 5}, "no 'NumIteration'. Did you mean 'NumIterations'"),
        ({"OptimAlgorithm": "adam"}, "adaround or adaquant"),
        ({"OptimDevice": "cuda:0"}, "OptimDevice='cuda:0'"),
        ({"OutputIndex": 2}, "OutputIndex"),
        ({"RefModelPath": "float.onnx"}, "RefModelPath"),
        ({"TargetOpType": ["Conv"]}, "leaves out ConvTranspose, Gemm, MatMul"),
        ({"UpdateBias": True}, "UpdateBias=True: .*adaround"),
        ({"OptimAlgorithm": "adaquant", "WarmStart": 0.5}, "WarmStart=0.5: .*adaquant"),
        ({"DropRatio": 2.0}, "quantized_share"),
    ],
)
def test_what_cannot_be_had_is_named(params, message):
    with pytest.raises(UsageError, match=message):
        refinement_of(params)
