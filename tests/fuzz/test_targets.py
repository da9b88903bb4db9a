"""A few seconds of fuzzing with fixed seeds; `make fuzz` goes on from there."""

from __future__ import annotations

import random

import pytest
from fuzz.mutate import mutate
from fuzz.runner import run_one
from fuzz.targets import TARGETS

RUNS = {"check": 6, "convert": 4, "quantize": 3, "load": 40, "inspect": 20, "statistics": 40, "checkpoint": 40}


@pytest.mark.parametrize("name", TARGETS)
def test_whatever_the_file_the_answer_is_a_result_or_a_detent_error(name, tmp_path):
    target, rng = TARGETS[name], random.Random(name)
    seeds = target.seeds()
    failures = [
        failure
        for _ in range(RUNS.get(name, 60))
        if (failure := run_one(target, tmp_path, mutate(rng.choice(seeds), rng, model=target.model)))
    ]
    assert not failures, failures[0]


def test_seeds_are_answered_and_mutations_repeat(tmp_path):
    for name in ("load", "recipe", "npy", "npz", "image"):
        for data in TARGETS[name].seeds()[:1]:
            TARGETS[name].run(tmp_path, data)
            first, second = (mutate(data, random.Random(1), model=TARGETS[name].model) for _ in range(2))
            assert first == second
