"""The command `detent`, also as `python -m detent`."""

import signal


def main() -> None:
    """Run the command. Ctrl-C while its modules are imported ends it as the system does, without a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from detent.cli import main as command

    command()


if __name__ == "__main__":
    main()
