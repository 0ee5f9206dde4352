"""Graph to graph: one pass a file, `PASS` facts and `run`; the ordered list is in pipeline.py."""
