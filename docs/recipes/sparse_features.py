"""Sparse features: bags of words stay a CSR, dropout included, and the first layer reads their entries alone."""

import torch
from torch.nn.functional import cross_entropy, dropout

from fusedmm import CSR, data, nn

torch.manual_seed(0)
documents, words, topics = 400, 2000, 4
topic = torch.arange(documents) % topics
word = torch.randint(words // topics, (documents, 20)) * topics + topic[:, None]  # words of the topic
word[:, 10:] = torch.randint(words, (documents, 10))  # and any others
X = CSR.from_coo(torch.arange(documents).repeat_interleave(20), word.flatten(), torch.ones(8000), (documents, words))
adj = data.uniform(documents, documents, 1600)
print(f"{100 * X.nnz / (documents * words):.1f} % of the features are there")

first, last = nn.GCNConv(words, 16), nn.GCNConv(16, topics)
optimiser = torch.optim.Adam([*first.parameters(), *last.parameters()], lr=0.02)
for _ in range(40):
    optimiser.zero_grad()
    dropped = X.with_values(dropout(X.val, 0.3))  # what is not there is 0 before and after
    out = last(first(dropped, CSR.eye(documents)).relu(), CSR.eye(documents))
    cross_entropy(out[:200], topic[:200]).backward()
    optimiser.step()
out = last(first(X, CSR.eye(documents)).relu(), CSR.eye(documents))
accuracy = (out.argmax(1) == topic)[200:].float().mean()
print(f"test accuracy {accuracy:.3f}")
assert accuracy > 0.6
torch.testing.assert_close(first(X, adj), first(X.to_dense(), adj), rtol=1e-4, atol=1e-5)
