"""Common parts of the zoo's command lines: exit codes and one-line errors."""

import argparse
import sys

EXIT_BAD_INPUT = 2


class InputError(Exception):
    """Bad usage or bad input. The message names the file or the field."""


class _HelpFormatter(argparse.HelpFormatter):
    """Shows defaults, but not that an option left out is None or False."""

    def _get_help_string(self, action):
        silent = (None, False, [], argparse.SUPPRESS)
        # By type too, because 0 == False, and 0 is worth showing.
        if any(
            action.default == value and type(action.default) is type(value)
            for value in silent
        ):
            return action.help
        return f"{action.help} (default: %(default)s)"


class Parser(argparse.ArgumentParser):
    """argparse prints the whole usage on an error; scripts want one line."""

    def __init__(self, **kwargs):
        super().__init__(formatter_class=_HelpFormatter, **kwargs)

    def error(self, message):
        raise InputError(f"{message} (--help lists the options)")


def run(main, program):
    """Runs `main()` and exits: 0, or 2 with one line on stderr."""
    try:
        main()
    except InputError as error:
        line = " ".join(str(error).split())
        print(f"{program}: error: {line}", file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)
    except BrokenPipeError:
        sys.exit(1)


def positive_int(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def positive_float(text):
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def fraction(text):
    value = float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value
