"""fusedmm beside torch.sparse, both in one process: ``python -m benchmarks spmm|sddmm|host --device cpu|cuda``."""
