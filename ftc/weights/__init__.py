"""From the files of a checkpoint to parameters and expert banks in memory."""

from __future__ import annotations
