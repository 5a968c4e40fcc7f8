"""From a table to a graph: rows that are alike become neighbours."""

import torch
from sklearn.datasets import load_wine
from sklearn.neighbors import kneighbors_graph
from sklearn.preprocessing import StandardScaler
from torch.nn.functional import cross_entropy

from fusedmm import CSR, nn

torch.manual_seed(0)
table = load_wine()
features = StandardScaler().fit_transform(table.data)
knn = CSR.from_scipy(kneighbors_graph(features, 8)).pattern()
adj = (knn.with_values(torch.ones(knn.nnz)) + knn.t().with_values(torch.ones(knn.nnz))).pattern()  # both directions
x, y = torch.from_numpy(features).float(), torch.from_numpy(table.target)
train = torch.cat([(y == wine).nonzero()[:8, 0] for wine in range(3)])  # eight wines of each kind
test = torch.ones(len(y), dtype=torch.bool).index_fill(0, train, False)

model = nn.GATConv(13, 3, heads=4, concat=False)
optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
for _ in range(60):
    optimiser.zero_grad()
    out = model(x, adj)
    cross_entropy(out[train], y[train]).backward()
    optimiser.step()
accuracy = (out.argmax(1) == y)[test].float().mean()
print(f"{len(train)} labelled wines, test accuracy {accuracy:.3f}")
assert accuracy > 0.9
