"""The cluster as a person with a kubeconfig reaches it: through kubectl, the same on the lab and anywhere else."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

from rlguard.errors import TransientError

TIMEOUT: Final = 60.0
REWATCH_PAUSE: Final = 0.5
CHUNK: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Kubectl:
    """One kubeconfig and namespace. `binary` is the lab's own kubectl or the one on PATH."""

    binary: str
    kubeconfig: str
    namespace: str = "default"

    async def run(self, *args: str, stdin: str | None = None, timeout: float = TIMEOUT) -> str:  # noqa: ASYNC109 - kills the child
        """Run to the end and return its output. Raises TransientError with kubectl's own words."""
        process = await asyncio.create_subprocess_exec(
            *self._command(*args),
            stdin=asyncio.subprocess.PIPE if stdin is not None else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(timeout):
                out, err = await process.communicate(stdin.encode() if stdin is not None else None)
        except TimeoutError as error:
            raise TransientError(f"kubectl {args[0]}: no answer within {timeout:g} s") from error
        finally:
            await _end(process)
        if process.returncode != 0:
            raise TransientError(f"kubectl {' '.join(args[:4])}: {err.decode(errors='replace').strip()[:500]}")
        return out.decode(errors="replace")

    async def get(self, *args: str) -> dict[str, Any]:
        """An object or a list as JSON."""
        value: dict[str, Any] = json.loads(await self.run("get", *args, "-o", "json"))
        return value

    async def watch(self, kind: str, name: str) -> AsyncIterator[dict[str, Any]]:
        """The object now and after each change, for ever; a watch that ends is begun again."""
        while True:
            async for value in self._watch_once(kind, name):
                yield value
            await asyncio.sleep(REWATCH_PAUSE)

    async def _watch_once(self, kind: str, name: str) -> AsyncIterator[dict[str, Any]]:
        process = await asyncio.create_subprocess_exec(
            *self._command("get", kind, name, "-o", "json", "--watch"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        stream, text = process.stdout, ""
        try:
            while stream is not None and (chunk := await stream.read(CHUNK)):
                values, text = split_json(text + chunk.decode(errors="replace"))
                for value in values:
                    yield value
        finally:
            await _end(process)

    def _command(self, *args: str) -> list[str]:
        return [self.binary, "--kubeconfig", self.kubeconfig, "--namespace", self.namespace, *args]


def split_json(text: str) -> tuple[list[Any], str]:
    """The whole JSON values at the start of `text`, and the rest that is not whole yet."""
    decoder, values = json.JSONDecoder(), []
    rest = text.lstrip()
    while rest:
        try:
            value, end = decoder.raw_decode(rest)
        except json.JSONDecodeError:
            break
        values.append(value)
        rest = rest[end:].lstrip()
    return values, rest


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
