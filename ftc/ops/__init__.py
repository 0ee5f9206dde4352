"""The words of the graph: one file per op family, each with contract, reference and kernels."""
