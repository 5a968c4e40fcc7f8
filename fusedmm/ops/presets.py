"""The patterns of the FusedMM paper as arguments of ``fused``: ``fused(A, x, **presets.SIGMOID_EMBEDDING)``.

Those whose edge function does not name ``a`` are of matrices without values: ``A.pattern()``.
"""

from __future__ import annotations

from typing import Any

# x_j weighted by sigmoid(<x_i, x_j>): the attraction of VERSE and of force-directed embedding.
SIGMOID_EMBEDDING: dict[str, Any] = {"score": "dot", "edge": "sigmoid(s)", "message": "scale"}

# x_j weighted by 1 - sigmoid(<x_i, x_j>): the gradient of -log sigmoid(<x_i, x_j>) by x_i, negated.
SIGMOID_ATTRACTION: dict[str, Any] = {"score": "dot", "edge": "sigmoid(-s)", "message": "scale"}

# x_i - x_j weighted by the t-distribution 1 / (1 + |x_i - x_j|^2): t-SNE and layouts of graphs.
T_DISTRIBUTION: dict[str, Any] = {"score": "sqdist", "edge": "1/(1+s)", "message": "sub"}

# The sum of a_ij y_j of a graph convolution, whose values are the normalised weights: plain SpMM.
SPMM: dict[str, Any] = {"score": "none", "edge": "a", "message": "scale"}
GCN: dict[str, Any] = SPMM

# max_j relu(x_i + y_j) on projected inputs x = P u, y = Q u: the message network of the paper, pooled.
MLP_MAX: dict[str, Any] = {
    "score": "none", "edge": "1", "message": "add", "activation": "relu", "reduce": "max",
}  # fmt: skip
