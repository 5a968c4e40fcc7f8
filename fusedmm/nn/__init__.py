"""Graph layers on the fused kernels."""
