"""Kernels in Triton, each with a PyTorch function that computes the same and that tests compare it
with. Whoever imports them needs Triton, which comes with PyTorch for CUDA.

numbers.py     products, a hyperbolic tangent, the eight bits of e4m3
attention.py   the kernels of model.attention.triton_paged
fused.py       what model.fused has: sum and norm, rotation and cache, gate
sampling.py    model.sampling's draws, without the host
few_bits.py    model.few_bits's products

No launch parameter (blocks, warps, stages) has been measured: they were chosen by what the compiler
reports for sm_80, sm_89 and sm_90, and by what the shared memory of an L4 (99 KiB to a program)
holds, which is less than an A100's and an H100's. None that a sum depends on is chosen by what else
is in the batch, so a row has the same bits in any.

With TRITON_INTERPRET=1, set before the first import, they run in NumPy on a CPU.
"""
