"""Where Triton's kernels are tested: in the interpreter, or on a GPU with TRITON_INTERPRET=0."""

import os

import torch

DEVICE = torch.device("cuda" if os.environ["TRITON_INTERPRET"] == "0" else "cpu")
