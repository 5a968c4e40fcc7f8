"""PyG's tools that watch messages, on our layers: explainers, Captum, hooks and masks. Checks of test_pyg_tools.py."""

import torch
from torch_geometric import explain
from torch_geometric.explain.algorithm.utils import clear_masks, set_masks

from support.pyg_nets import LAYERS, alike, inputs, net, pyg, quiet, same, swapped, with_gradients
from support.small_graph import NODES, features


def explainer(model, algorithm, edge_mask_type="object", **options):
    config = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}
    return explain.Explainer(
        model, algorithm, explanation_type="model", edge_mask_type=edge_mask_type, model_config=config, **options
    )


def explained(device, make, names=tuple(LAYERS), **options):
    """Each explanation is PyG's, and behind it our layers compute as before."""
    for name in names:
        model, (x, edge_index, *attr) = net(name, device), inputs(name, device)
        named = {"edge_attr": attr[0]} if attr else {}
        mine, found = swapped(model), []
        before = mine(x, edge_index, *attr)
        for one in (mine, model):
            run = quiet(explainer, one, make(), **options)
            found.append(quiet(run, x, edge_index, index=2, **named))
        for key in ("edge_mask", "node_mask"):
            if key in found[1]:
                alike(found[0][key], found[1][key])
                assert found[0][key].any()
        assert torch.equal(mine(x, edge_index, *attr), before) and not mine.conv1._watched


def check_gnn_explainer(device):
    explained(device, lambda: explain.GNNExplainer(epochs=3), node_mask_type="attributes")


def check_attention_explainer(device):
    explained(device, explain.AttentionExplainer, ("GAT", "GAT loops", "GATv2", "Transformer"))


def check_pg_explainer(device):
    for name in ("GCN loops", "GAT"):
        model, (x, edge_index, *attr) = net(name, device), inputs(name, device)
        found, named = [], {"edge_attr": attr[0]} if attr else {}
        config = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}
        for one in (swapped(model), model):
            torch.manual_seed(1)
            algorithm = explain.PGExplainer(epochs=2).to(device).double()
            run = explain.Explainer(
                one, algorithm, explanation_type="phenomenon", edge_mask_type="object", model_config=config
            )
            target = torch.zeros(NODES, dtype=torch.long, device=device)
            for epoch in range(2):
                quiet(algorithm.train, epoch, one, x, edge_index, target=target, index=2, **named)
            found.append(quiet(run, x, edge_index, target=target, index=2, **named).edge_mask)
        assert found[0].any()
        alike(*found)


def check_graph_mask_explainer(device):
    for name in ("GCN", "SAGE"):
        model, (x, edge_index) = net(name, device).float(), inputs(name, device)
        found = []
        for one in (swapped(model), model):
            algorithm = explain.GraphMaskExplainer(2, epochs=2, log=False).to(device)
            found.append(quiet(explainer(one, algorithm), x.float(), edge_index, index=2).edge_mask)
        alike(*found)


def check_to_captum_model(device):
    for name in LAYERS:
        model, (x, edge_index, *attr) = net(name, device), inputs(name, device)
        mask = torch.rand(1, 40, dtype=torch.float64, device=device, requires_grad=True)
        found = []
        for one in (swapped(model), model):
            of_edges = pyg.to_captum_model(one, "edge", 2)(mask, x, edge_index, *attr)
            of_both = pyg.to_captum_model(one, "node_and_edge", 2)(x[None], mask, edge_index, *attr)
            of_nodes = pyg.to_captum_model(one, "node", 2)(x[None], edge_index, *attr)
            found.append([of_edges, of_both, of_nodes, *torch.autograd.grad(of_edges.sum(), mask)])
        same(*found)


def floats(t):
    return isinstance(t, torch.Tensor) and t.is_floating_point()


def check_hooks(device):
    """Each of PyG's hooks, which all change what they see."""
    changes = {
        "register_propagate_forward_pre_hook": lambda m, i: (i[0].flip(1), *i[1:]),
        "register_propagate_forward_hook": lambda m, i, out: 2 * out,
        "register_message_forward_pre_hook": lambda m, i: ({k: 2 * t if floats(t) else t for k, t in i[0].items()},),
        "register_message_forward_hook": lambda m, i, out: out.cos(),
        "register_aggregate_forward_pre_hook": lambda m, i: ({**i[0], "index": i[0]["index"].roll(1)},),
        "register_aggregate_forward_hook": lambda m, i, out: out - 1,
    }
    for name in LAYERS:
        layer, args = LAYERS[name](pyg).double().to(device), inputs(name, device)
        mine = swapped(layer)
        plain = mine(*args)
        for register, change in changes.items():
            handles = [getattr(one, register)(change) for one in (mine, layer)]
            same(with_gradients(mine, args), with_gradients(layer, args))
            for handle in handles:
                handle.remove()
        assert torch.equal(mine(*args), plain) and not mine._watched


def check_set_masks(device):
    for name in LAYERS:
        model, args = net(name, device), inputs(name, device)
        mine, found, mask = swapped(model), [], features(40, seed=4).to(device).requires_grad_()
        for one in (mine, model):
            set_masks(one, mask, args[1])
            found.append([with_gradients(one, args), *torch.autograd.grad(one(*args).sum(), mask)])
            clear_masks(one)
        same(*found)
        same(mine(*args), model(*args))
