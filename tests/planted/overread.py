"""Planted: a tensor whose memory shrinks behind its back, to its first four rows."""

import torch

import fusedmm

adj = fusedmm.CSR.from_coo(torch.arange(64), torch.arange(64), shape=(64, 64))
x = torch.ones(64, 16)
x.untyped_storage().resize_(256)
fusedmm.spmm(adj, x)
