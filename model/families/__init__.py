"""What families of models call their dimensions, and how each differs from Llama.

    hugging_face.py   config.json   → the fields of a ModelConfig
    llamas.py         gpts.py       what each family does
    common.py         rope.py       what they have in common
    quantization.py                 how a folder's matrices are quantized
    gguf.py           GGUF metadata → the same fields

A field that changes what is computed is read, or refused where it isn't as we compute it.
"""
