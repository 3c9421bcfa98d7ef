"""One step of a draw: which of eight siblings a target falls on, found by one comparison of vectors.

Written for LLVM's vectors because numba would compare the siblings one after the other, which takes three times as
long. Which instructions they become is LLVM's affair. Nothing here checks that a block is in its array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.core.cgutils import ir, pack_struct  # type: ignore[attr-defined]  # what numba builds its own code with
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
    # What ends where everything ends has no younger sibling with mass, even if rounding put the target at the very end.
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
    """A vector with this number in every place."""
    one = builder.insert_element(_UNSET, number, ir.Constant(_INDEX, 0))
    return builder.shuffle_vector(one, _UNSET, ir.Constant(ir.VectorType(_INDEX, FANOUT), [0] * FANOUT))


def _count(builder: Any, true_where: Any) -> Any:
    return builder.zext(builder.ctpop(builder.bitcast(true_where, _BYTE)), _WORD)


_intrinsic: Any = intrinsic  # whose own types tell what it is made of, not how it is called

step_down: Callable[[Floats, int, float], tuple[int, float]] = _intrinsic(_type_step_down)
"""(before, block, target): the last sibling with before <= target, and the target less its `before`.

The first sibling of every block has `before` = 0, which no target is below.
"""

step_to_leaf: Callable[[Floats, int, float], int] = _intrinsic(_type_step_to_leaf)
"""(masses, block, target): the last sibling that begins at or before the target, and has any mass.

A sibling begins where the masses of its elders, added up in their order, end.
"""

fetch_ahead: Callable[[Floats, int], None] = _intrinsic(_type_fetch_ahead)
"""(array, block): have the block brought into the cache, without waiting for it."""
