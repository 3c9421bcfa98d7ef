"""One step down a tree: find which of eight siblings a target falls on with one vector comparison.

It uses LLVM's vector types, because numba would compare the siblings one after the other, which takes three times as
long. LLVM chooses the instructions. Bounds are not checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.core.cgutils import ir, pack_struct  # type: ignore[attr-defined]  # numba's own code generation
from numba.extending import intrinsic
from numpy.typing import NDArray

FANOUT = 8

Floats = NDArray[np.float64]

_BYTE, _INDEX, _WORD = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_SIBLINGS = ir.VectorType(ir.DoubleType(), FANOUT)
_UNSET = ir.Constant(_SIBLINGS, ir.Undefined)


def _type_step_down(_context: Any, before: Any, _block: Any, _target: Any) -> Any:
    child_and_rest = types.Tuple((types.int64, types.float64))  # type: ignore[no-untyped-call]  # numba's own
    return child_and_rest(before, types.int64, types.float64), _step_down


def _type_step_to_leaf(_context: Any, masses: Any, _block: Any, _target: Any) -> Any:
    return types.int64(masses, types.int64, types.float64), _step_to_leaf


def _type_fetch_ahead(_context: Any, array: Any, _block: Any) -> Any:
    return types.void(array, types.int64), _fetch_ahead


def _step_down(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    before, block, target = arguments
    place = _place(context, builder, signature, before, block)
    siblings = builder.load(builder.bitcast(place, _SIBLINGS.as_pointer()), align=8)
    child = _count(builder, builder.fcmp_ordered("<=", siblings, _all(builder, target)))
    child = builder.sub(child, ir.Constant(_WORD, 1))
    rest = builder.fsub(target, builder.load(builder.gep(place, [child])))
    return pack_struct(builder, (child, rest))  # type: ignore[no-untyped-call]  # numba's own


def _step_to_leaf(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    masses, block, target = arguments
    place = _place(context, builder, signature, masses, block)
    running, ends = ir.Constant(ir.DoubleType(), 0.0), _UNSET
    for child in range(FANOUT):
        running = builder.fadd(running, builder.load(builder.gep(place, [ir.Constant(_WORD, child)])))
        ends = builder.insert_element(ends, running, ir.Constant(_INDEX, child))
    # A sibling that ends at the total mass has no later sibling with mass, even if rounding put the target at the end.
    passed = builder.fcmp_ordered("<=", ends, _all(builder, target))
    followed = builder.fcmp_ordered("<", ends, _all(builder, running))
    return _count(builder, builder.and_(passed, followed))


def _fetch_ahead(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    place = builder.bitcast(_place(context, builder, signature, *arguments), _BYTE.as_pointer())
    to_read, keep, data = (ir.Constant(_INDEX, choice) for choice in (0, 3, 1))
    kind = ir.FunctionType(ir.VoidType(), [place.type, _INDEX, _INDEX, _INDEX])
    builder.call(builder.module.declare_intrinsic("llvm.prefetch", [place.type], kind), [place, to_read, keep, data])
    return context.get_dummy_value()


def _place(context: Any, builder: Any, signature: Any, array: Any, block: Any) -> Any:
    first = context.make_array(signature.args[0])(context, builder, array).data
    return builder.gep(first, [builder.mul(block, ir.Constant(_WORD, FANOUT))])


def _all(builder: Any, number: Any) -> Any:
    """Return a vector with this number in every lane."""
    one = builder.insert_element(_UNSET, number, ir.Constant(_INDEX, 0))
    return builder.shuffle_vector(one, _UNSET, ir.Constant(ir.VectorType(_INDEX, FANOUT), [0] * FANOUT))


def _count(builder: Any, true_where: Any) -> Any:
    return builder.zext(builder.ctpop(builder.bitcast(true_where, _BYTE)), _WORD)


_intrinsic: Any = intrinsic  # untyped: its type hints describe the implementation, not how it is called

step_down: Callable[[Floats, int, float], tuple[int, float]] = _intrinsic(_type_step_down)
"""(before, block, target): return the last sibling with before <= target, and the target minus its `before`.

The first sibling of every block has `before` = 0, so there always is one.
"""

step_to_leaf: Callable[[Floats, int, float], int] = _intrinsic(_type_step_to_leaf)
"""(masses, block, target): return the last sibling with mass that begins at or before the target.

A sibling begins at the sum of the masses of the siblings before it.
"""

fetch_ahead: Callable[[Floats, int], None] = _intrinsic(_type_fetch_ahead)
"""(array, block): prefetch the block into the cache."""
