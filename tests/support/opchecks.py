"""torch's own checks of an operator: its schema, its fake kernel, its autograd, and what AOT dispatch makes of it."""

from __future__ import annotations

from typing import Any

import torch
from torch.library import opcheck


def check_operator(op: Any, args: tuple[Any, ...]) -> None:
    """All four checks of an operator without a gradient of its own.

    That of autograd passes over calls in which nothing wants a gradient, and the others warn where something does.
    """
    opcheck(op, args, test_utils=["test_schema", "test_faketensor", "test_aot_dispatch_dynamic"])
    wanting = [
        t.detach().requires_grad_() if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in args
    ]
    opcheck(op, tuple(wanting), test_utils="test_autograd_registration")
