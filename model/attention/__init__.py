"""Attention over the paged cache: a file per backend, each with the same three names.

    PAGE_SIZE                                    tokens in a page, as the backend wants it
    prepare(batch, …) -> Plan                    once per step: the batch's metadata, made ready
    attend(q_THD, layer_cache, plan) -> out_THD  once per layer, after its keys were written

`reference` is the oracle for the others.
"""
