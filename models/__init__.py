"""Spec files, one per model family, and the embedded demonstration model; installed as `ftc_models`."""

from __future__ import annotations
