# ruff: noqa: INP001 # copied beside the package, where the interpreter looks for it: a top-level module
"""First on the path of a guarded job: puts rlguard's hook in, then runs the user's own sitecustomize, if any.

Whatever goes wrong here is said on stderr and must not keep the user's program from starting.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _hook() -> None:
    try:
        from rlguard.launch.hook import install  # noqa: PLC0415 # a failure must be caught

        install()
    except Exception as error:  # noqa: BLE001 # the user's program goes on whatever happened here
        print(f"rlguard: running without its hook: {error!r}", file=sys.stderr)  # noqa: T201 # no logger this early


def _chain() -> None:
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 # pathlib is a slow import at every start
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]  # noqa: PTH100 # as above
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if "RLGUARD_WORLD" in os.environ:
    _hook()
_chain()
