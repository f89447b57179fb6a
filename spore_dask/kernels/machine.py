"""Two instructions that numba does not offer by itself: prefetch, and the bits of a float."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from spore_dask.kernels.compiling import part

CACHE_LINE_NBYTES = 64


@intrinsic
def bits_of(typing_context, value):
    """Return the bits of a float64 as int64."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(64))

    if value == types.float64:
        return types.int64(types.float64), generate


@intrinsic
def prefetch(typing_context, array, index):
    """Ask the processor to fetch the entry `index` places behind the start of an array, if any."""

    def generate(context, builder, signature, arguments):
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        number = ir.IntType(32)
        byte = ir.IntType(8).as_pointer()
        place = builder.bitcast(builder.gep(view.data, [arguments[1]]), byte)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        fetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(fetch, [place, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@part
def prefetch_row(array, row, n_entries):
    """Ask the processor to fetch the first entries of a row of a two-dimensional array."""
    first = np.int64(row) * (array.strides[0] // array.itemsize)
    for i in range(0, n_entries, CACHE_LINE_NBYTES // array.itemsize):
        prefetch(array, first + i)
