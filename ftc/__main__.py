"""Runs the command line as `python -m ftc`."""

from __future__ import annotations

from ftc.cli.main import main

if __name__ == "__main__":
    main()
