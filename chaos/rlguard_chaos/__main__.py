"""The `rlguard` command: hands over to the part that the first word names."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

from rlguard.errors import RlguardError

COMMANDS = {
    "lab": ("rlguard_chaos.lab.cli", "a real multi-node Kubernetes on this machine, to try everything on"),
    "chaos": ("rlguard_chaos.cli", "break a guarded job on purpose and judge how it recovers"),
    "node": ("rlguard_chaos.cli_node", "what is wrong with this machine, what a fault code means; needs no cluster"),
    "demo": ("rlguard_chaos.cli_demo", "five acts on the lab, beside the same job without rlguard"),
}
"""Word -> (module with `register(parser)`, whose commands set `run`; help). A module is imported only when named."""

BAD_INPUT = 2


def main(words: list[str] | None = None) -> int:
    """Run the command line; returns the exit status: 2 with one line `rlguard: ...` when something is wrong."""
    given = sys.argv[1:] if words is None else words
    parser = argparse.ArgumentParser(
        prog="rlguard", description="Keeps training jobs on Kubernetes alive. `rlguard COMMAND --help` says more."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text)
        if given[:1] == [name]:
            try:
                import_module(module).register(command)
            except ModuleNotFoundError as error:
                sys.stderr.write(f"rlguard: {name} needs {error.name}: pip install 'rlguard[chaos]'\n")
                return BAD_INPUT
    arguments = parser.parse_args(given)
    try:
        return int(arguments.run(arguments))
    except (RlguardError, OSError) as error:
        sys.stderr.write(f"rlguard: {_said(error)}\n")
        return BAD_INPUT
    except KeyboardInterrupt:
        sys.stderr.write("rlguard: interrupted\n")
        return 130


def _said(error: Exception) -> str:
    """The error in words: of a file, its name and what is wrong with it."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


if __name__ == "__main__":
    sys.exit(main())
