from __future__ import annotations


def test_demo(detent, tmp_path):
    outcome = detent("demo", tmp_path / "new" / "digits.onnx")
    assert outcome.code == 0
    assert "Accuracy on 400 labelled digits: float 99.50 %, XINT8 99.50 % (0 images lost, 0 won)." in outcome.out
    assert "npu-xint8 takes all of it: 31 of 31 nodes on the device, in 1 subgraph" in outcome.out
    assert "Batch of 'image' fixed to 1" in outcome.out  # as `quantize` says it of the same model
    assert (tmp_path / "new" / "digits.onnx").is_file()


def test_demo_files_are_all_that_it_takes_to_try_things(detent, tmp_path):
    folder = tmp_path / "digits"
    assert detent("demo", "--files", folder).code == 0
    data = ("--data", folder / "labelled", "--preprocess", folder / "preprocess.json")
    assert "99.50" in detent("evaluate", folder / "digits.onnx", *data).out
    assert len(list((folder / "calibration").iterdir())) == 64
    again = detent("demo", "--files", folder)
    assert again.code == 5
    assert "exists already" in again.err
