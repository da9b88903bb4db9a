"""Data in, statistics out: readers, the sweep over calibration samples, and the histogram that it fills."""
