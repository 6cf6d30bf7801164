"""One look at every GPU through nvidia-ml-py. Runs in a process of its own, for a driver that hangs."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref
from typing import Any, Final

import pynvml

from rlguard.health.gpu.snapshot import (
    DRIVER_NOT_LOADED,
    LIBRARY_MISMATCH,
    UNINITIALIZED,
    Ecc,
    Fabric,
    Gpu,
    Heat,
    Refused,
    Rows,
    Snapshot,
)

UNKNOWN: Final = 999
GONE: Final = frozenset({15, 16})
"""GPU is lost, reset required: no other call on it would say more."""
OVER: Final = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, LIBRARY_MISMATCH})
"""Nothing at all can be read any more."""
LARGEST: Final = 2**63 - 1
"""NVML says "no such value" by the largest number of a type, too."""
LINK_ERRORS: Final = (
    pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
    pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
)
FIELDS: Final = (pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, *LINK_ERRORS)
VALUES: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of a field's value, by its type (nvmlValueType_t)."""


class Calls:
    """The calls on one GPU. One that is refused gives None and is noted; a GPU that is gone is asked no more.

    Every call raises NVMLError for a code of OVER.
    """

    def __init__(self) -> None:
        self.refused: list[Refused] = []
        self._gone = False

    def ask(self, name: str, *arguments: Any) -> Any:
        """What nvidia-ml-py's function `name` returns."""
        if self._gone:
            return None
        try:
            return getattr(pynvml, name)(*arguments)
        except pynvml.NVMLError as error:
            if error.value in OVER:
                raise
            self._refuse(name, int(error.value))
        except ValueError:  # a text that is none
            self._refuse(name, UNKNOWN)
        return None

    def whole(self, name: str, *arguments: Any) -> int | None:
        """The same, for a whole number."""
        return _whole(self.ask(name, *arguments))

    def yes(self, name: str, *arguments: Any) -> bool | None:
        """The same, for yes or no."""
        value = self.ask(name, *arguments)
        return None if value is None else bool(value)

    def _refuse(self, name: str, code: int) -> None:
        self.refused.append(Refused(name, code))
        self._gone = code in GONE


def read_all() -> Snapshot:
    """Every GPU as it is now. Raises NVMLError when the driver as a whole refuses."""
    driver = Calls().ask("nvmlSystemGetDriverVersion")
    return Snapshot(tuple(_read(index) for index in range(pynvml.nvmlDeviceGetCount())), driver)


def address_of(handle: Any) -> str:
    """The PCI address of a GPU, normalised. Raises NVMLError."""
    info = pynvml.nvmlDeviceGetPciInfo(handle)
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}"


def _read(index: int) -> Gpu:
    calls = Calls()
    handle = calls.ask("nvmlDeviceGetHandleByIndex", index)
    if handle is None:
        return Gpu(index, refused=tuple(calls.refused))
    info = calls.ask("nvmlDeviceGetPciInfo", handle)
    fields = _fields(calls, handle)
    return Gpu(
        index=index,
        pci=None if info is None else f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}",
        uuid=calls.ask("nvmlDeviceGetUUID", handle),
        serial=calls.ask("nvmlDeviceGetSerial", handle),
        name=calls.ask("nvmlDeviceGetName", handle),
        minor=calls.whole("nvmlDeviceGetMinorNumber", handle),
        ecc=_ecc(calls, handle),
        rows=_rows(calls, handle),
        heat=_heat(calls, handle),
        fabric=_fabric(calls, handle),
        links=_links(calls, handle),
        link_errors=_sum([fields[field] for field in LINK_ERRORS]),
        action=fields[pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION],
        refused=tuple(calls.refused),
    )


def _ecc(calls: Calls, handle: Any) -> Ecc:
    types = (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
    counters = (pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC)
    return Ecc(*(calls.whole("nvmlDeviceGetTotalEccErrors", handle, kind, of) for of in counters for kind in types))


def _rows(calls: Calls, handle: Any) -> Rows:
    remapped = calls.ask("nvmlDeviceGetRemappedRows", handle)
    banks = calls.ask("nvmlDeviceGetRowRemapperHistogram", handle)
    corrected, uncorrected, pending, failed = remapped or (None, None, None, None)
    return Rows(
        corrected,
        uncorrected,
        pending=None if pending is None else bool(pending),
        failed=None if failed is None else bool(failed),
        banks_low=None if banks is None else int(banks.low),
        banks_exhausted=None if banks is None else int(banks.none),
        pages_pending=calls.yes("nvmlDeviceGetRetiredPagesPendingStatus", handle),
    )


def _heat(calls: Calls, handle: Any) -> Heat:
    milliwatts = calls.whole("nvmlDeviceGetPowerUsage", handle)
    return Heat(
        calls.whole("nvmlDeviceGetTemperature", handle, pynvml.NVML_TEMPERATURE_GPU),
        calls.whole("nvmlDeviceGetTemperatureThreshold", handle, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
        None if milliwatts is None else milliwatts / 1000,
        calls.whole("nvmlDeviceGetCurrentClocksEventReasons", handle),
    )


def _fabric(calls: Calls, handle: Any) -> Fabric:
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    if calls.ask("nvmlDeviceGetGpuFabricInfoV", handle, byref(info)) is None:
        return Fabric()
    return Fabric(int(info.state), int(info.status), int(info.healthMask))


def _links(calls: Calls, handle: Any) -> tuple[bool, ...]:
    """Which links are up, up to the first number that is none."""
    links: list[bool] = []
    while len(links) < pynvml.NVML_NVLINK_MAX_LINKS:
        up = calls.yes("nvmlDeviceGetNvLinkState", handle, len(links))
        if up is None:
            break
        links.append(up)
    return tuple(links)


def _fields(calls: Calls, handle: Any) -> dict[int, int | None]:
    values = calls.ask("nvmlDeviceGetFieldValues", handle, FIELDS)
    return dict.fromkeys(FIELDS) if values is None else {int(value.fieldId): _field(value) for value in values}


def _field(value: Any) -> int | None:
    if value.nvmlReturn != pynvml.NVML_SUCCESS or not 0 < value.valueType < len(VALUES):
        return None
    return _whole(getattr(value.value, VALUES[value.valueType]))


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 <= value <= LARGEST else None
