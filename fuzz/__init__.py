"""Fuzzing: whatever the file, the answer is a result or a DetentError.

    make fuzz SECONDS=60                       # all targets, one after the other
    python -m fuzz recipe labels --seconds 5   # some of them
    python -m fuzz load --file crash.bin       # an input that was kept

`targets.py` are the functions that read files, `seeds.py` generates their corpora, `mutate.py` changes these: bytes,
tokens, and for models the messages inside. With atheris installed, `--atheris` lets coverage guide the changes.
"""
