"""Quark's searches over configurations: AutoSearch over fields of QuantizationConfig, AutoSearchPro over QConfig.

A space lists values for each field; every combination is a configuration. Those that mean the same to Detent are tried
once. Each is quantized with all of the data, compared with the float model, and noted in `auto_search.json` of the
output folder, so that a search that was interrupted goes on where it stopped.

    two stages      first the calibration, without fine-tuning; then every fine-tuning with the best of these
    ranges          {"type": "float", "low": 1e-6, "high": 1e-3, "log": True}: values are drawn, the same in every run
    metrics         L2, L1, and the distances 1 - cos, -psnr, 1 - ssim: less is better in all of them
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from detent.compat.algorithms import ALGO_NAME_TO_CLASS
from detent.compat.configs import Config, QConfig
from detent.compat.data_types import SPECS, QLayerConfig, parse_data_type
from detent.compat.entry_points import ModelQuantizer
from detent.compat.enums import CalibMethod, CalibrationMethod, PowerOfTwoMethod, QuantGranularity, QuantType, ScaleType
from detent.compat.option_rows import note
from detent.compat.readers import CachedDataReader
from detent.compat.translate import translate
from detent.errors import UsageError, check_known
from detent.graph.load import load
from detent.graph.runtime import onnxruntime
from detent.graph.save import check_output, save
from detent.observe.samples import Array

Space = Mapping[str, Any]
RECORD = "auto_search.json"
_SEED = 42


def _cosine(a: Array, b: Array) -> float:
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    return 0.5 - 0.5 * float(a @ b) / norms if norms else 1.0


def _psnr(a: Array, b: Array) -> float:
    error = float(np.mean((a - b) ** 2))
    return -100.0 if error < 1e-10 else -20 * math.log10(255 / math.sqrt(error))


def _ssim(a: Array, b: Array) -> float:
    low, high = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    means, spreads = (a.mean(), b.mean()), (a.std(), b.std())
    same = (2 * means[0] * means[1] + low) * (2 * spreads[0] * spreads[1] + high)
    return 1 - float(same / ((means[0] ** 2 + means[1] ** 2 + low) * (spreads[0] ** 2 + spreads[1] ** 2 + high)))


METRICS: dict[str, Callable[[Array, Array], float]] = {
    "L2": lambda a, b: float(np.mean((a - b) ** 2)),
    "L1": lambda a, b: float(np.mean(np.abs(a - b))),
    "cos": _cosine,
    "psnr": _psnr,
    "ssim": _ssim,
}


class _Trials:
    """Quantized models of a search, each compared with the float model once."""

    def __init__(self, model: str | Path, folder: str | Path, reader: Any, metric: str | None, judge: Any) -> None:
        check_known("search_metric", metric or "L2", METRICS)
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._model, self._reader, self._judge = model, reader, judge
        self._metric = METRICS[metric or "L2"]
        self._baseline: Any = None
        path = self.folder / RECORD
        self._known: dict[str, float] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def difference(self, config: Any, output: Path, compared_on: Any = None) -> float:
        """Quantize to a file, and return how far its answers are from the float model's."""
        request = translate(config)
        key = hashlib.sha256(f"{self._model}{request}".encode()).hexdigest()
        if key in self._known and output.exists():
            return self._known[key]
        self._reader.rewind()
        ModelQuantizer(config).quantize_model(self._model, output, self._reader)
        self._known[key] = found = self._compare(output, compared_on or self._reader)
        (self.folder / RECORD).write_text(json.dumps(self._known), encoding="utf-8")
        return found

    def _compare(self, output: Path, reader: Any) -> float:
        if self._judge is not None:
            if self._baseline is None:
                self._baseline = float(self._judge(str(self._model)))
            return float(self._baseline - self._judge(str(output)))
        if self._baseline is None:
            self._baseline = list(_answers(self._model, reader))
        pairs = zip(self._baseline, _answers(output, reader), strict=True)
        return float(np.mean([self._metric(expected, found) for expected, found in pairs]))


def _answers(model: str | Path, reader: Any) -> Iterator[Array]:
    """Yield all outputs of a model as one row, for each sample."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    reader.rewind()
    for feeds in iter(reader.get_next, None):
        yield np.concatenate([np.asarray(each, np.float64).reshape(-1) for each in session.run(None, dict(feeds))])


# -- AutoSearch --------------------------------------------------------------------------------------------------------

_NESTED = ("extra_options", "FastFinetune")


def _combinations(space: Space) -> Iterator[dict[str, Any]]:
    """Yield every choice of one value for each field; dictionaries of lists are spaces of their own."""
    parts = [list(_combinations(value)) if name in _NESTED else list(value) for name, value in space.items()]
    for values in product(*parts):
        chosen = copy.deepcopy(dict(zip(space, values, strict=True)))
        if "NumIterLR" in chosen:  # both in one
            chosen["NumIterations"], chosen["LearningRate"] = chosen.pop("NumIterLR")
        yield chosen


class SearchSpace:
    """All combinations of the values in a dictionary of lists."""

    def __init__(self, conf: Space, *_: Any, **__: Any) -> None:
        self.conf = conf

    def get_all_configs(self) -> list[dict[str, Any]]:
        """Return them."""
        return list(_combinations(self.conf))


class AutoSearchConfig:
    """What AutoSearch takes where its own configuration says nothing."""

    search_space: ClassVar[Space] = {
        "calibrate_method": [PowerOfTwoMethod.MinMSE, CalibrationMethod.MinMax, CalibrationMethod.Percentile],
        "activation_type": [QuantType.QInt8, QuantType.QInt16],
        "weight_type": [QuantType.QInt8],
        "include_cle": [True, False],
        "extra_options": {"ActivationSymmetric": [True, False]},
    }
    search_metric: str = "L2"
    search_algo: str = "grid_search"
    search_evaluator: Any = None
    search_metric_tolerance: float = 2.0e4
    search_cache_dir: str = "./"
    search_output_dir: str = "./"
    search_log_path: str = "./auto_search.log"
    two_stage_search: bool = False
    advanced_fastft_search: bool = False
    n_jobs: int = 1
    search_devices: str = "cpu"
    search_stop_condition: ClassVar[Space] = {}


class AutoSearch:
    """A search over fields of QuantizationConfig. `candidates` are those within the tolerance, the best first.

    The best model is at `model_output`, too, if one is named.
    """

    def __init__(
        self,
        model_input: str | Path,
        config: Config,
        auto_search_config: Any = None,
        eval_dataloader: Any = None,
        calibration_data_reader: Any = None,
        calibration_data_path: str | Path | None = None,
        *,
        model_output: str | Path | None = None,
    ) -> None:
        if isinstance(model_input, Config):  # older versions: configuration, search, model, its output or data
            config, auto_search_config, model_input = model_input, config, auto_search_config
            if isinstance(eval_dataloader, (str, Path)):
                model_output, eval_dataloader = eval_dataloader, None
            elif calibration_data_reader is None:
                calibration_data_reader, eval_dataloader = eval_dataloader, None
        if calibration_data_path is not None or calibration_data_reader is None:
            raise UsageError("AutoSearch needs a calibration_data_reader: samples are read again for every candidate.")
        self.config, self.model_input = config, model_input
        self.model_output = Path(model_output) if model_output else None
        if self.model_output is not None:
            check_output(self.model_output, model_input)  # before the search, not after it
        self.auto_search_config = auto_search_config or AutoSearchConfig()
        for name in ("advanced_fastft_search", "n_jobs", "search_devices"):
            if self._setting(name) != getattr(AutoSearchConfig, name):
                note(
                    f"AutoSearchConfig.{name}: candidates are tried one after the other, on the CPU, as they are given."
                )
        if eval_dataloader is not None:
            note("AutoSearch: candidates are compared on the calibration data, not on eval_dataloader.")
        self.calibration_data_reader = CachedDataReader(calibration_data_reader)
        self.all_configs = self.build_all_configs(self._setting("search_space"))
        self.candidates: list[dict[str, Any]] = []
        self.searched_space: dict[int, float] = {}
        self.best_candidate: dict[str, Any] | None = None

    def _setting(self, name: str) -> Any:
        value = getattr(self.auto_search_config, name, None)
        return getattr(AutoSearchConfig, name) if value is None else value

    def build_all_configs(self, search_space_config: Space) -> list[dict[str, Any]]:
        """Return the combinations of a space."""
        return SearchSpace(search_space_config).get_all_configs()

    def search_model(self) -> list[dict[str, Any]]:
        """Try the configurations, and return those within the tolerance, the best first; their models are written."""
        trials = _Trials(
            self.model_input,
            self._setting("search_output_dir"),
            self.calibration_data_reader,
            self._setting("search_metric"),
            self._setting("search_evaluator"),
        )
        if self._setting("two_stage_search"):
            found = [self._in_two_stages(trials)]
        else:
            configs = list(self.all_configs)
            if self._setting("search_algo") == "random":
                configs = [configs[index] for index in np.random.default_rng(_SEED).permutation(len(configs))]
            self._try(trials, configs)
            found = self.candidates
        if self.model_output is not None and self.best_candidate is not None:
            save(load(self.best_candidate["model_path"]), self.model_output)
        return found

    def _in_two_stages(self, trials: _Trials) -> dict[str, Any]:
        """Return the best fine-tuning of the best calibration."""
        tuning = [each.get("extra_options", {}).get("FastFinetune", {}) for each in self.all_configs]
        plain = [{**each, "include_fast_ft": False} for each in self.all_configs]
        best = self._try(trials, plain)
        options = best.get("extra_options", {})
        second = [
            {**best, "include_fast_ft": True, "extra_options": {**options, "FastFinetune": each}}
            for number, each in enumerate(tuning)
            if each and each not in tuning[:number]
        ]
        return self._try(trials, second) if second else best

    def _try(self, trials: _Trials, configs: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Try configurations until a condition to stop holds, and return the best."""
        stop, started = self._setting("search_stop_condition"), time.monotonic()
        limits = {name: stop.get(name, -1) for name in ("find_n_candidates", "iteration_limit", "time_limit")}
        tried: list[Any] = []
        best, least = configs[0], math.inf
        for given in configs:
            config = self._merged(given)
            request = translate(config)
            if request in tried:
                continue
            number = len(self.searched_space)
            output = trials.folder / f"iter_{number}.onnx"
            found = trials.difference(config, output)
            tried.append(request)
            self.searched_space[number] = found
            self._keep({"config_index": number, "difference": found, "model_path": str(output), "config": given})
            if found < least:
                best, least = given, found
            past = {
                "find_n_candidates": len(self.candidates),
                "iteration_limit": len(tried),
                "time_limit": time.monotonic() - started,
            }
            if any(limit > 0 and past[name] >= limit for name, limit in limits.items()):
                break
        return best

    def _keep(self, candidate: dict[str, Any]) -> None:
        """Keep the file of a candidate within the tolerance, or of the best until there is one."""
        better = self.best_candidate is None or candidate["difference"] < self.best_candidate["difference"]
        if candidate["difference"] <= self._setting("search_metric_tolerance"):
            self.candidates = sorted([*self.candidates, candidate], key=lambda each: float(each["difference"]))
        elif not better:
            Path(candidate["model_path"]).unlink(missing_ok=True)
        if better:
            self.best_candidate = candidate

    def _merged(self, given: Space) -> Config:
        """Return the configuration with these fields; parameters of what is switched off are left out."""
        config = copy.deepcopy(self.config.global_quant_config)
        options = dict(given.get("extra_options", {}))
        for name, value in given.items():
            if name != "extra_options":
                setattr(config, name, value)
        if not config.include_fast_ft:
            options.pop("FastFinetune", None)
            config.extra_options.pop("FastFinetune", None)
        config.extra_options = {**config.extra_options, **options}
        config.print_summary = False
        return Config(config)


# -- AutoSearchPro -----------------------------------------------------------------------------------------------------


def generate_all_configs(search_space: Space) -> list[dict[str, Any]]:
    """Return every combination of a space whose dictionaries count only if their `only_if` holds."""
    plain = {name: _listed(name, value) for name, value in search_space.items() if not isinstance(value, Mapping)}
    groups = {name: value for name, value in search_space.items() if isinstance(value, Mapping)}
    found = [dict(zip(plain, values, strict=True)) for values in product(*plain.values())]
    for name, group in groups.items():
        own = {key: _listed(key, value) for key, value in group.items() if key != "only_if"}
        settings = [dict(zip(own, each, strict=True)) for each in product(*own.values())]
        found = [
            {**each, name: setting} if holds else each
            for each in found
            for holds in [_holds(group.get("only_if"), each)]
            for setting in (settings if holds else [None])
        ]
    return [copy.deepcopy(each) for each in found]


def _listed(name: str, value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        raise UsageError(f"The search space has a range for '{name}': a grid needs a list of values.")
    return list(value)


def _holds(condition: Any, chosen: Space) -> bool:
    if isinstance(condition, Mapping):
        return all(chosen.get(name) == value for name, value in condition.items())
    return condition is None or chosen.get(condition) is not None


_MEMBERS = {"calibration_method": CalibMethod, "scale_type": ScaleType, "quant_granularity": QuantGranularity}
_TUNING = ("adaround", "adaquant")


class AutoSearchPro:
    """A search over specifications and algorithms of QConfig. `run` returns the best parameters."""

    def __init__(self, config: Space) -> None:
        self.config = dict(config)
        for name in ("model_input", "calib_data_reader"):
            if self.config.get(name) is None:
                raise UsageError(f"AutoSearchPro: '{name}' is missing.")
        self.search_space: dict[str, Any] = dict(self.config.get("search_space") or {})
        if not self.search_space:
            raise UsageError(
                "AutoSearchPro: 'search_space' is missing. get_auto_search_config('XINT8_SEARCH') has one."
            )
        self._reader = CachedDataReader(self.config["calib_data_reader"])
        given = self.config.get("eval_data_reader")
        self._compared_on = None if given is None else CachedDataReader(given)
        self._trials = _Trials(
            self.config["model_input"],
            self.config.get("output_dir") or "./output",
            self._reader,
            self.config.get("search_metric"),
            self.config.get("search_evaluator"),
        )
        self._sign = -1 if self.config.get("direction", "minimize") == "maximize" else 1

    def run(self) -> dict[str, Any]:
        """Try the combinations, as many as `n_trials`, and return the best; its parameters are written, too."""
        space = self.search_space
        if self.config.get("two_stage_search"):
            tuning = {name: value for name, value in space.items() if name.split("_")[0] in ("algorithms", *_TUNING)}
            best = self._best(generate_all_configs({k: v for k, v in space.items() if k not in tuning}))
            fixed = {name: [value] for name, value in best.items()}
            space = {**fixed, **tuning} if tuning.get("algorithms") else fixed
        best = self._best(self._drawn(space)[: int(self.config.get("n_trials") or 20)])
        path = self._trials.folder / "best_params.json"
        path.write_text(json.dumps(best, indent=2, default=str), encoding="utf-8")
        return best

    def _drawn(self, space: Space) -> list[dict[str, Any]]:
        """Return combinations in which a range gives some of its values; in random order unless it is a grid."""
        if self.config.get("search_algo") == "Grid":
            return generate_all_configs(space)
        generator = np.random.default_rng(_SEED)
        found = generate_all_configs(_sampled(space, generator))
        return [found[index] for index in generator.permutation(len(found))]

    def _best(self, configs: Sequence[dict[str, Any]]) -> dict[str, Any]:
        found = [(self._score(number, each), number) for number, each in enumerate(configs)]
        return configs[min(found)[1]]

    def _score(self, number: int, params: Space) -> float:
        output = self._trials.folder / f"quantized_model_{number}.onnx"
        return self._sign * self._trials.difference(_config_of(params), output, self._compared_on)


_DRAWS = 3  # how many values of a range are tried


def _sampled(space: Space, generator: np.random.Generator) -> dict[str, Any]:
    """Return the space with lists of values for ranges."""

    def values(spec: Any) -> Any:
        if not isinstance(spec, Mapping):
            return spec
        low, high = spec["low"], spec["high"]
        if spec.get("log"):
            return [float(each) for each in np.exp(generator.uniform(math.log(low), math.log(high), _DRAWS))]
        if spec.get("type") == "float":
            return [float(each) for each in generator.uniform(low, high, _DRAWS)]
        return [int(each) for each in generator.choice(np.arange(low, high + 1, spec.get("step", 1)), _DRAWS)]

    groups = {name: dict(value) for name, value in space.items() if isinstance(value, Mapping)}
    return {
        **space,
        **{
            name: {key: value if key == "only_if" else values(value) for key, value in group.items()}
            for name, group in groups.items()
        },
    }


def _spec(name: str, settings: Space) -> Any:
    named = {key: _MEMBERS[key][value] if key in _MEMBERS else value for key, value in settings.items()}
    if "data_type" in named:
        named["data_type"] = parse_data_type(named["data_type"])
    check_known("specification", name, SPECS)
    return SPECS[name](**named)


def _config_of(params: Space) -> QConfig:
    """Return the configuration that one combination stands for."""
    given = {name: value for name, value in params.items() if value is not None}
    layer = QLayerConfig(
        _spec(given.pop("activation", ""), given.pop("activation_params", {})),
        _spec(given.pop("weight", ""), given.pop("weight_params", {})),
    )
    algorithms = []
    for key in ("cle_algo", "algorithms"):
        name = given.pop(key, None)
        settings = dict(given.pop(f"{name}_params", {}))
        if "NumIterLR" in settings:
            settings["num_iterations"], settings["learning_rate"] = settings.pop("NumIterLR")
        if name is not None:
            algorithms.append(ALGO_NAME_TO_CLASS[name](**settings))
    unused = [f"{name}_params" for name in ("cle", *_TUNING)]
    options = {"PrintSummary": False, **{name: value for name, value in given.items() if name not in unused}}
    return QConfig(layer, algo_config=algorithms, **options)


def _search_config(activation: str, methods: Sequence[str], symmetric: Sequence[bool]) -> dict[str, Any]:
    """Make one of the ready searches."""
    ranges = {"adaround": (1e-2, 1e-1), "adaquant": (1e-6, 1e-4)}
    tuning = {
        f"{name}_params": {
            "num_iterations": {"type": "int", "low": 500, "high": 2000, "step": 500},
            "learning_rate": {"type": "float", "low": low, "high": high, "log": True},
            "only_if": {"algorithms": name},
        }
        for name, (low, high) in ranges.items()
    }
    weight = "XInt8Spec" if activation == "XInt8Spec" else "Int8Spec"
    space = {
        "activation": [activation],
        "activation_params": {
            "symmetric": list(symmetric),
            "calibration_method": list(methods),
            "only_if": "activation",
        },
        "weight": [weight],
        "cle_algo": ["cle", None],
        "cle_params": {"cle_steps": [-1, 1], "only_if": {"cle_algo": "cle"}},
        "algorithms": list(_TUNING),
        **tuning,
    }
    return {
        "search_space": space,
        **{"n_trials": 20, "n_jobs": 1, "output_dir": "./output", "search_algo": "TPE", "direction": "minimize"},
        **{"search_metric": None, "search_evaluator": None, "two_stage_search": True, "model_input": None},
        **{"calib_data_reader": None, "eval_data_reader": None},
    }


_FLOAT_SCALES = ("MinMax", "Percentile", "LayerwisePercentile")
_SEARCHES = {
    "XINT8_SEARCH": ("XInt8Spec", ("MinMSE",), (True,)),
    "A8W8_SEARCH": ("Int8Spec", _FLOAT_SCALES, (True, False)),
    "A16W8_SEARCH": ("Int16Spec", _FLOAT_SCALES, (True, False)),
    "ADVANCED_SEARCH": ("Int8Spec", _FLOAT_SCALES, (True, False)),
}


def get_auto_search_config(config_name: str) -> dict[str, Any]:
    """Return a ready search by its name, such as XINT8_SEARCH, to be completed with a model and data."""
    check_known("search", config_name, _SEARCHES)
    return _search_config(*_SEARCHES[config_name])


def __getattr__(name: str) -> dict[str, Any]:
    """Serve the ready searches as constants, such as XINT8_SEARCH_CONFIG."""
    if name.removesuffix("_CONFIG") not in _SEARCHES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return get_auto_search_config(name.removesuffix("_CONFIG"))
