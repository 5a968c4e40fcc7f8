"""fusedmm beside torch.sparse, both in one process: ``python -m benchmarks spmm|sddmm|host --device cpu|cuda``."""

import os

# Of this process, before torch is there: it binds its thread to one of them where OMP_PROC_BIND says so.
CPUS = os.sched_getaffinity(0)
