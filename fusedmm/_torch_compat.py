"""Every private name of torch that fusedmm uses: what it is for, and in which versions of torch it is there.

torch may change these without notice, so nothing else in the package names one, which a test checks. Each of them is
in torch 2.10, 2.11 and 2.13, with which the package was tested, and means the same there unless a comment says more.
An alias costs a call nothing, and torch.compile knows the function behind it. Functions are written where torch's name
is an attribute, or must not be looked up before it is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd import forward_ad
from torch.nn import Module
from torch.nn.modules.module import _has_any_global_hook
from torch.utils import _pytree

# torch.export takes a CSR as an argument once its tensors are the leaves of a tree. The public
# torch.export.register_dataclass cannot leave a field out, and the number of columns has to stay out.
pytree = _pytree

# ---- transforms of torch.func ----

# Whether a transform is at work: autograd functions then have to be of the form with setup_context.
are_transforms_active = torch._C._are_functorch_transforms_active
# A context in which no transform is at work, so that what is cached in it carries none of their marks.
without_transforms = temporarily_clear_interpreter_stack
# Whether a tensor is a transform's wrapper around another, whether it is that of a vmap, and the one inside.
is_wrapper = torch._C._functorch.is_functorch_wrapped_tensor
is_batched = torch._C._functorch.is_batchedtensor
unwrapped = torch._C._functorch.get_unwrapped
# What ``autograd.Function.apply`` comes to where no transform is at work. Before that it goes through all arguments, in
# Python, for wrappers of transforms that have ended, which takes longer than the call itself; operators unwrap those.
plain_apply: Any = vars(torch._C._FunctionBase)["apply"]
# Whether a gradient is a batch of many, as torch.autograd.grad(is_grads_batched=True) makes them.
is_batch_of_gradients = torch._C._functorch.is_legacy_batchedtensor


def in_forward_mode() -> bool:
    """Tells whether forward mode is at work: outside of it no tensor has a tangent, and none needs to be asked."""
    return forward_ad._current_level >= 0


# ---- autocast ----

# Whether autocast is at work on any device: half the cost of torch.is_autocast_enabled, which reads a device's name.
is_autocast_anywhere = torch._C._is_any_autocast_enabled


# ---- compiled code ----


def graph_break(why: str) -> None:
    """Ends the graph that torch.compile records here; a text says why, where there must be one graph.

    The name is looked up late, since importing torch._dynamo takes longer than all of fusedmm.
    """
    torch._dynamo.graph_break(msg=why)


def is_exporting() -> bool:
    """Tells whether torch.export traces.

    To what torch 2.10 and 2.11 compile, the public function is always true; there the flag behind it is asked too.
    """
    return torch.compiler.is_exporting() and getattr(torch.compiler, "_is_exporting_flag", True)


# Whether torch.jit.trace records; torch.jit does not list the name among its own.
is_tracing = torch.jit.is_tracing  # type: ignore[attr-defined]

# ---- tensors ----


def writes_to(t: Tensor) -> int:
    """Tells how often a tensor was written to in place, as torch counts it.

    Raises:
        RuntimeError: it was made in inference mode, where torch does not count.
    """
    return t._version


def storage_number(t: Tensor) -> int:
    """Returns a number of a tensor's storage that no other has while it lives: ``edge_index.data = other`` changes
    it."""
    return t.untyped_storage()._cdata


def raw_indices(t: Tensor) -> Tensor:
    """Returns the indices of a COO tensor, coalesced or not: ``indices()`` refuses the second."""
    return t._indices()


def raw_values(t: Tensor) -> Tensor:
    """Returns the values of a COO tensor, coalesced or not."""
    return t._values()


# A context in which tensors of a class of its own are as others: what is called there is not handed to the class.
as_plain_tensors = torch._C.DisableTorchFunctionSubclass

# ---- modules and operators ----


def is_hooked(module: Module) -> bool:
    """Tells whether anybody is told when a module is called."""
    forward: Any = module._forward_hooks or module._forward_pre_hooks
    return bool(forward or module._backward_hooks or module._backward_pre_hooks) or _has_any_global_hook()


def hooks_of(module: Module, kind: str) -> dict[int, Any]:
    """Returns a module's own hooks of a kind: "forward", "forward_pre", "backward" or "backward_pre"."""
    found: dict[int, Any] = getattr(module, f"_{kind}_hooks")
    return found


def argument_names(operator: Any) -> list[str]:
    """Returns the names of an operator's arguments, by which its errors call them."""
    return [argument.name for argument in operator.default._schema.arguments]


# ---- processes and backward passes ----


def default_store() -> Any:
    """The store through which the processes of torch.distributed found each other."""
    return torch.distributed.distributed_c10d._get_default_store()


def timeout_of(group: Any) -> timedelta | None:
    """How long the ranks of a process group over NCCL wait for each other; None where torch does not tell."""
    try:
        found: timedelta = group._get_backend(torch.device("cuda")).options._timeout
    except (AttributeError, RuntimeError):
        return None
    return found


def shared_memory(size: int, device: torch.device, group: Any) -> tuple[Tensor, Any]:
    """Bytes on this rank's GPU that all ranks of a process group reach, and what gives theirs and waits for them.

    Raises:
        ImportError, AttributeError: torch has no such memory, or has it elsewhere.
        RuntimeError: the GPUs do not reach each other.
    """
    from torch._C._distributed_c10d import _SymmetricMemory
    from torch.distributed import _symmetric_memory as symmetric

    room = _SymmetricMemory.empty_strided_p2p(torch.Size((size,)), torch.Size((1,)), torch.uint8, device)
    return room, symmetric.rendezvous(room, group.group_name)


# A number of the backward pass that runs in this thread.
backward_number = torch._C._current_graph_task_id


def when_backward_ends(call: Callable[[], None]) -> None:
    """Has a hook's backward pass call something once all of its gradients are there."""
    torch.autograd.Variable._execution_engine.queue_callback(call)
