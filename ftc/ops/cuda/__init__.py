"""Triton kernels of the words, one file per family; importing one imports Triton, so only a GPU's target does."""
