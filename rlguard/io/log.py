"""Structured logs: one JSON object per line on stderr, or readable lines on a terminal."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog


def configure(process: str, **fields: Any) -> structlog.stdlib.BoundLogger:
    """Set up logging for this process and return its logger, bound to `process` and `fields`."""
    renderer = structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    logger: structlog.stdlib.BoundLogger = structlog.get_logger(process=process, **fields)
    return logger
