"""The last grant, kept where only this container sees it: a restarted process goes on without a controller."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rlguard.errors import BadWireError
from rlguard.messages import Grant
from rlguard.wire import from_json, to_json

NAME: Final = "grant.json"


class Remembered:
    """Reads and writes the last grant. A folder that cannot be written costs the memory, never the grant."""

    def __init__(self, folder: Path, log: Any) -> None:
        self.grant: Grant | None = None
        self._path = folder / NAME
        self._log = log
        self._read()

    def keep(self, grant: Grant) -> None:
        """Remember this grant; written to disk when it says something else than the last one."""
        # A time left is true when it is sent: read again after a restart it would promise time that has gone.
        lasting = replace(grant, save_within=None)
        changed = self.grant is None or lasting != replace(self.grant, save_within=None)
        self.grant = grant
        if changed:
            self._write(lasting)

    def _write(self, grant: Grant) -> None:
        temporary = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(to_json(grant)))
            temporary.replace(self._path)
        except OSError as error:
            self._log.warning("the grant cannot be remembered", problem=str(error))

    def _read(self) -> None:
        try:
            self.grant = from_json(Grant, json.loads(self._path.read_bytes()))
        except FileNotFoundError:
            return
        except (OSError, ValueError, BadWireError) as error:
            self._log.warning("the remembered grant cannot be read", problem=str(error))
