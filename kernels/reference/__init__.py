"""What the kernels must compute, said plainly in numpy and float64; slow, and without torch or triton.

`mxfp4` the format, `routing` from logits to experts, `align` from experts to blocks, `moe` the layer, `cases` data for tests.
"""
