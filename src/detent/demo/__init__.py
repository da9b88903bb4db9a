"""A small digit classifier with its images, to see Detent at work on a machine that has nothing else."""
