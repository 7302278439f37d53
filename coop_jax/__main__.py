"""The command `coop-jax`, also `python -m coop_jax`."""

import signal
import sys

from coop_jax._src.command_line.main import main


def program() -> int:
    """What the process does; returns its exit code.

    Ctrl-C ends it at once, as the signal does by itself: Python would wait while XLA compiles, for
    minutes.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return main()


if __name__ == "__main__":
    sys.exit(program())
