"""Lines of mlx5 adapters, of network devices that stopped sending, and of bonds. Pure.

Quiet: `mlx5_cmd_out_err ... ACCESS_REG ... failed`, which reading counters causes by itself.
"""

from __future__ import annotations

import re
from typing import Final

from rlguard.health.lines.line import NAME, PCI, Line, Pattern, first

TELLTALES: Final = (
    "Will cause a leak",
    "device's health",
    "health recovery",
    "Health issue",
    "Fatal error",
    "PCIe slot",
    "Port module event",
    "Link down",
    "Link up",
    "NETDEV WATCHDOG",
    "link status definitely",
)
_MLX5 = rf"mlx5_core {PCI}:? .{{0,120}}"


def _mlx5(code: str, what: str) -> Pattern:
    return Pattern(code, re.compile(_MLX5 + what, re.DOTALL), "{pci}")


_PATTERNS = (
    # mlx5_core 0000:61:00.0: wait_func:1132:(pid 141181): CREATE_DCT(0x710) timeout. Will cause a leak of a
    #   command resource
    _mlx5("mlx5-command-timeout", r"\) timeout\. Will cause a leak of a command resource"),
    # mlx5_core 0000:0d:00.0: poll_health:801:(pid 0): device's health compromised - reached miss count
    _mlx5("mlx5-health-compromised", r"device's health compromised"),
    # mlx5_core 0000:0d:00.0: print_health_info:431:(pid 0): Health issue observed, firmware internal error,
    #   severity(3) ERROR:
    _mlx5("mlx5-firmware-error", r"Health issue observed, .{1,80}severity\([0-3]\)"),
    _mlx5("mlx5-firmware-notice", r"Health issue observed, .{1,80}severity\([4-7]\)"),
    # mlx5_core 0000:0d:00.0: poll_health:812:(pid 0): Fatal error 1 detected
    _mlx5("mlx5-firmware-error", r"Fatal error [0-9]{1,3} detected"),
    # mlx5_core 0000:0d:00.0: mlx5_health_try_recover:340:(pid 123): health recovery succeeded
    _mlx5("mlx5-recovered", r"health recovery succeeded"),
    # mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 268269): Detected insufficient power on the PCIe slot (27W).
    _mlx5("mlx5-slot-power", r"Detected insufficient power on the PCIe slot"),
    # mlx5_core 0000:5c:00.0: mlx5_pcie_event:301:(pid 9): PCIe slot advertised sufficient power (75W).
    _mlx5("mlx5-slot-power-good", r"PCIe slot advertised sufficient power"),
    # mlx5_core 0000:5c:00.0: Port module event: module 0, Cable unplugged
    _mlx5("mlx5-cable-unplugged", r"Port module event: module [0-9]{1,3}, Cable unplugged"),
    _mlx5("mlx5-cable-plugged", r"Port module event: module [0-9]{1,3}, Cable plugged"),
    # mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, High Temperature
    _mlx5("mlx5-module-error", r"Port module event\[error\]: module [0-9]{1,3}, "),
    # mlx5_core 0000:01:00.0 enp1s0f0np0: Link up
    Pattern("mlx5-link-up", re.compile(rf"mlx5_core {PCI} {NAME}: Link up"), "{pci}"),
    # mlx5_core 0000:01:00.0 enp1s0f0np0: Link down
    Pattern("mlx5-link-down", re.compile(rf"mlx5_core {PCI} {NAME}: Link down"), "{pci}"),
    # mlx5_core 0000:65:00.0 eth0: NETDEV WATCHDOG: CPU: 5: transmit queue 0 timed out 5032 ms       (since Linux 6.8)
    Pattern(
        "netdev-watchdog",
        re.compile(rf"{PCI} {NAME}: NETDEV WATCHDOG: .{{0,40}}transmit queue [0-9]{{1,5}} timed out"),
        "{pci}",
    ),
    # NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 0 timed out                                  (before)
    Pattern(
        "netdev-watchdog",
        re.compile(rf"NETDEV WATCHDOG: (?P<netdev>{NAME}) \({NAME}\): transmit queue [0-9]{{1,5}} timed out"),
        "{netdev}",
    ),
    # bond0: link status definitely down for interface eno50, disabling it
    Pattern(
        "bond-slave-down",
        re.compile(r"(?P<bond>[\w.-]{1,32}): link status definitely down for interface (?P<slave>[\w.-]{1,32})"),
        "{bond}/{slave}",
    ),
    # bond0: (slave eno50): link status definitely down, disabling slave
    Pattern(
        "bond-slave-down",
        re.compile(r"(?P<bond>[\w.-]{1,32}): \(slave (?P<slave>[\w.-]{1,32})\): link status definitely down"),
        "{bond}/{slave}",
    ),
    # bond0: link status definitely up for interface eno50, 25000 Mbps full duplex
    Pattern(
        "bond-slave-up",
        re.compile(r"(?P<bond>[\w.-]{1,32}): link status definitely up for interface (?P<slave>[\w.-]{1,32})"),
        "{bond}/{slave}",
    ),
    # bond0: (slave eno50): link status definitely up, 25000 Mbps full duplex
    Pattern(
        "bond-slave-up",
        re.compile(r"(?P<bond>[\w.-]{1,32}): \(slave (?P<slave>[\w.-]{1,32})\): link status definitely up"),
        "{bond}/{slave}",
    ),
)


def read(text: str) -> Line | None:
    """What a line tells of the network, None if nothing. Never raises."""
    return first(_PATTERNS, text)
