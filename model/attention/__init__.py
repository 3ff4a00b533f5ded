"""Attention over the paged cache: a file per backend, each a model.attention.backend.Backend.

reference.py     gathers pages and masks; on any device, and the oracle for the others
triton_paged.py  our own kernels, for CUDA
varlen.py        FlashAttention as PyTorch has it, for CUDA
self_test.py     compares any of them with the reference
"""
