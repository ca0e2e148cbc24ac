"""PyTorch's names of graph nodes, where they are not the op's name in CamelCase.

These strings are what programs and people see in `grad_fn`; nothing depends on them.
"""

from __future__ import annotations

TORCH_NAMES = {
    "absolute": "Abs",
    "arccos": "Acos",
    "arccosh": "Acosh",
    "arcsin": "Asin",
    "arcsinh": "Asinh",
    "arctan": "Atan",
    "arctan2": "Atan2",
    "arctanh": "Atanh",
    "astype": "ToCopy",
    "broadcast_to": "Expand",
    "concatenate": "Cat",
    "copy": "Clone",
    "divide": "Div",
    "expand_dims": "Unsqueeze",
    "gather": "Index",
    "gather_scatter": "IndexPut",
    "gather_scatter_add": "IndexPut",
    "mask_scatter": "IndexPut",
    "mask_select": "Index",
    "multiply": "Mul",
    "negative": "Neg",
    "power": "Pow",
    "reshape": "View",
    "rint": "Round",
    "square": "Pow",
    "subtract": "Sub",
    "transpose": "Permute",
}


def node_name(op_name: str) -> str:
    """Return the class name of an op's nodes.

    >>> node_name("multiply"), node_name("slice_scatter")
    ('MulBackward0', 'SliceScatterBackward0')
    """
    stem = TORCH_NAMES.get(op_name)
    if stem is None:
        stem = "".join(part.capitalize() for part in op_name.split("_"))
    return f"{stem}Backward0"
