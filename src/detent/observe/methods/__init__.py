"""The calibration methods: pure functions from what was observed to quantization parameters, one file for each."""
