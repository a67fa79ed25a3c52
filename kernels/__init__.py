"""The MXFP4 mixture-of-experts kernel, its reference, tuner, store of configurations and vLLM plugin (README.md).

Imports neither console nor harness, and no triton or torch by itself.
"""
