"""Data loaders whose items are read by number: the same samples in every pass, with the labels beside them."""

from __future__ import annotations

import numpy as np
import pytest

import detent
from detent.errors import DataError, UsageError
from detent.evaluation.dataset import open_dataset
from detent.observe.loaders import LoaderRows, first_sample, is_loader
from detent.observe.preprocess import InputSpec
from tests.evaluation.test_evaluator import CLASSES, SAME

INPUTS = (InputSpec("x", np.dtype("float32"), (None, 3)),)


class Items:
    """A dataset of inputs that count up, each with its own number as label."""

    def __init__(self, count=6, make=None):
        self.count, self.reads = count, []
        self.make = make or (lambda at: (np.full(3, at, np.float32), at))

    def __len__(self):
        return self.count

    def __getitem__(self, at):
        self.reads.append(at)
        return self.make(at)


class Loader:
    """What torch's DataLoader shows of itself."""

    def __init__(self, dataset, sampler=None, batch_sampler=((0,),), batch_size=4):
        self.dataset, self.batch_sampler, self.batch_size = dataset, batch_sampler, batch_size
        self.sampler = range(len(dataset)) if sampler is None else sampler

    def collate_fn(self, items):
        if isinstance(items[0], dict):
            return {key: np.stack([item[key] for item in items]) for key in items[0]}
        return [np.stack([item[part] for item in items]) for part in range(len(items[0]))]

    def __iter__(self):
        yield self.collate_fn([self.dataset[at] for at in range(2)])


def values(dataset):
    return [float(batch.pending.load().feeds["x"][0, 0]) for batch in dataset]


@pytest.mark.parametrize("sampler", [[3, 1, 2, 0, 5, 4], [5, 4, 3, 2, 1, 0]])
def test_samples_come_in_the_order_of_their_numbers_whatever_the_sampler_shuffles(sampler):
    rows = LoaderRows(Loader(Items(), sampler), INPUTS)
    assert [rows.origin(row) for row in range(len(rows))] == [f"item {at}" for at in range(6)]
    assert [rows.label(row) for row in range(6)] == list(range(6))


def test_only_the_samples_that_the_sampler_chooses():
    assert LoaderRows(Loader(Items(), [4, 2]), INPUTS).numbers == [2, 4]
    assert LoaderRows(Loader(Items(), batch_sampler=[[5], [1, 0]], batch_size=None), INPUTS).numbers == [0, 1, 5]


def test_a_loader_without_batches_gives_items_as_they_are():
    loader = Loader(Items(), batch_sampler=None, batch_size=None)
    loader.collate_fn = lambda item: item
    rows = LoaderRows(loader, INPUTS)
    assert rows.read(2)["x"].shape == (3,) and rows.label(2) == 2


def test_labels_stand_behind_the_input_or_under_their_name():
    named = Loader(Items(make=lambda at: {"x": np.full(3, at, np.float32), "labels": 7 - at}))
    assert LoaderRows(named, INPUTS).label(3) == 4
    for other in ((np.zeros(3, np.float32),), (np.zeros(3, np.float32), 0.5), (np.zeros(3, np.float32), [1, 2])):
        assert LoaderRows(Loader(Items(make=lambda at, item=other: item)), INPUTS).label(0) is None


def test_a_dataset_has_the_labels_of_the_samples_that_are_used_and_reads_no_others():
    items = Items(100)
    data = open_dataset(Loader(items), INPUTS, limit=5, label_offset=1)
    used = [number for number, label in data.used_labels().items()]
    assert len(used) == 5 and set(items.reads) <= {0, *data.source.selection.rows}
    assert all(label == int(name.removeprefix("item ")) + 1 for name, label in data.used_labels().items())
    assert data.described == "5 of 100 samples from a Loader, labels from the loader"


def test_labels_can_be_left_out_or_replaced():
    assert open_dataset(Loader(Items()), INPUTS, labels=None).labels is None
    assert open_dataset(Loader(Items()), INPUTS, labels=[9, 8, 7, 6, 5, 4]).used_labels()["item 5"] == 4
    with pytest.raises(DataError, match="2 labels"):
        open_dataset(Loader(Items()), INPUTS, labels=[1, 2])


def test_two_passes_are_the_same():
    data = open_dataset(Loader(Items(), [3, 0, 5]), INPUTS)
    assert values(data) == values(data) == [0, 3, 5]


def test_random_augmentation_is_refused():
    noise = np.random.default_rng(0)
    with pytest.raises(DataError, match="random augmentation"):
        LoaderRows(Loader(Items(make=lambda at: (noise.normal(size=3).astype(np.float32), at))), INPUTS)


def test_what_the_dataset_raises_is_named():
    def broken(at):
        raise KeyError("gone")

    with pytest.raises(DataError, match="item 0 of the Loader.*KeyError"):
        LoaderRows(Loader(Items(make=broken)), INPUTS)


@pytest.mark.parametrize("sampler", [[], ()])
def test_a_loader_without_samples(sampler):
    with pytest.raises(DataError, match="no samples"):
        LoaderRows(Loader(Items(), sampler), INPUTS)


def test_a_sample_without_a_label_among_others_that_have_one():
    items = Items(make=lambda at: (np.zeros(3, np.float32), at if at < 4 else 0.5))
    with pytest.raises(DataError, match="item 4 .* has no label"):
        open_dataset(Loader(items), INPUTS)


def test_a_loader_of_a_stream_is_no_loader_of_items():
    stream = Loader(Items())
    stream.dataset = iter([])
    assert is_loader(Loader(Items())) and not is_loader(stream) and not is_loader([1]) and not is_loader("photos/")
    with pytest.raises(UsageError, match="numbered items"):
        open_dataset(stream, INPUTS)


def test_the_first_sample_of_a_loader():
    assert first_sample(Loader(Items())).shape == (1, 3)


def test_evaluate_takes_a_loader_and_its_labels():
    data = np.random.default_rng(3).normal(size=(40, CLASSES)).astype(np.float32)
    labels = [at % CLASSES for at in range(40)]
    loader = Loader(Items(40, make=lambda at: (data[at], labels[at])), sampler=list(range(39, -1, -1)))
    found = detent.evaluate(SAME, loader).models[0].scores
    assert found.answers.tolist() == detent.evaluate(SAME, data, labels=labels).models[0].scores.answers.tolist()
    assert found.accuracy() == pytest.approx(100 * np.mean(data.argmax(1) == labels))
