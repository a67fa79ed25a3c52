"""The kernel of a mixture-of-experts layer with 16-bit activations and MXFP4 weights, and its host side.

`launch` says without torch or triton what is launched; `layer.fused_moe` launches it; `kernel` is the device code alone.
"""
