"""Serves Mixture-of-Experts models that do not fit the GPU: spec, trace, passes, compile, runtime, serve."""

from __future__ import annotations

__version__ = "0.1.0"
