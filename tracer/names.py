"""PyTorch's names of graph nodes, where they are not the op's name in CamelCase.

These strings are what programs and people see in `grad_fn`; nothing depends on them.
"""

from __future__ import annotations

STEMS: dict[str, tuple[str, ...]] = {
    "Abs": ("absolute",),
    "Acos": ("arccos",),
    "Acosh": ("arccosh",),
    "Asin": ("arcsin",),
    "Asinh": ("arcsinh",),
    "Atan": ("arctan",),
    "Atan2": ("arctan2",),
    "Atanh": ("arctanh",),
    "Cat": ("concatenate",),
    "Clone": ("copy",),
    "Div": ("divide",),
    "Expand": ("broadcast_to",),
    "Index": (
        "gather",
        "mask_select",
    ),
    "IndexPut": (
        "gather_scatter",
        "gather_scatter_add",
        "mask_scatter",
    ),
    "Mul": ("multiply",),
    "Neg": ("negative",),
    "Permute": ("transpose",),
    "Pow": (
        "power",
        "square",
    ),
    "Round": ("rint",),
    "Sub": ("subtract",),
    "ToCopy": ("astype",),
    "Unsqueeze": ("expand_dims",),
    "View": ("reshape",),
}
# PyTorch has a function for each of these ranks of the operands.
RANKED: dict[str, dict[tuple[int, ...], str]] = {
    "matmul": {(2, 2): "Mm", (2, 1): "Mv", (1, 1): "Dot"},
}
TORCH_NAMES = {op: stem for stem, ops in STEMS.items() for op in ops}


def node_name(op_name: str, ranks: tuple[int, ...] | None = None) -> str:
    """Return the class name of an op's nodes, perhaps for some ranks of its operands.

    >>> node_name("multiply"), node_name("slice_scatter"), node_name("matmul", (2, 1))
    ('MulBackward0', 'SliceScatterBackward0', 'MvBackward0')
    """
    stem = TORCH_NAMES.get(op_name)
    if ranks is not None:
        stem = RANKED[op_name][ranks]
    if stem is None:
        stem = "".join(part.capitalize() for part in op_name.split("_"))
    return f"{stem}Backward0"
