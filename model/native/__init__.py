"""The same model as model.transformer, computed by our own C with weights of 8 bits.

library.py       finds the library that was compiled for this processor, and declares its calls
transformer.py   weights in, and a step's hidden states and logits out
cache.py         the pages that attention.c reads

forward.c        a whole step, in reading order
attention.c      rows.c      product.c, quantize.c, pack.c      what it is made of
team.c           state.c     the threads, and what outlives a step
vector.h         sixteen numbers at a time, on any processor
"""
