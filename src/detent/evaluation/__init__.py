"""What models get on data: accuracy, a metric, or how far their outputs are from a reference."""
