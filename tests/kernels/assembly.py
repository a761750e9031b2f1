"""A few operations of LLVM: called on this CPU, and the instructions that they become on any."""

from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def vector(bits: int, lanes: int) -> ir.VectorType:
    return ir.VectorType(ir.IntType(bits), lanes)


def called(kind: ir.VectorType, out: ir.VectorType, build: Callable[..., Any]) -> Any:
    """Store at the third pointer what `build(builder, ...)` makes of vectors at the first two."""

    @intrinsic
    def call(typing_context, left, right, found):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            *operands, found = arguments
            places = [builder.bitcast(place, kind.as_pointer()) for place in operands]
            result = build(builder, *(builder.load(place, align=1) for place in places))
            builder.store(result, builder.bitcast(found, out.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(left, right, found), codegen

    return call


def instructions(
    triple: str,
    cpu: str,
    operands: Sequence[ir.VectorType],
    out: ir.VectorType,
    build: Callable[..., Any],
) -> list[str]:
    """Mnemonics with their operands: load, `build(builder, *operands)`, store."""
    module, places = ir.Module(), [kind.as_pointer() for kind in (*operands, out)]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), places), "operations")
    builder = ir.IRBuilder(function.append_basic_block())
    loaded = [builder.load(place, align=1) for place in function.args[:-1]]
    builder.store(build(builder, *loaded), function.args[-1], align=1)
    builder.ret_void()
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=3)
    parsed = llvm.parse_assembly(str(module))
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(parsed, passes)
    lines = [line.strip().replace("{vex}", "").strip() for line in
             machine.emit_assembly(parsed).splitlines() if line.startswith("\t")]  # fmt: skip
    return [line for line in lines if not line.startswith(".")]
