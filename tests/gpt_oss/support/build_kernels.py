"""Build every kernel as gpt-oss-20b and 120b launch it, and print what the builds have.

The arguments are compute capabilities and the KiB of shared memory that a program may have there, such as 90=227 for
9.0. Only for that one, all kernels are built: see `ELSEWHERE`.
It runs in a separate process: where kernels are interpreted, there is nothing to build. Another version of Triton may
be in front of the environment's own on the path. A kernel lies in Triton's cache once it is built: the cache's key has
the source, the constants, the options, and the versions of Triton and the assembler.
"""

import json
import re
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from benchmarks.gpt_oss import candidate_kernels
from benchmarks.gpt_oss.baselines import DEPTH, scaled_kernel
from benchmarks.gpt_oss.baselines import STRIP as SCALED_STRIP
from benchmarks.gpt_oss.candidates import TOGETHER
from llama_stack_gpt_oss.engine.kernels import attention, experts, head, inputs, linear, norm, sampling
from llama_stack_gpt_oss.engine.kernels.triton_ops import (
    CANDIDATES,
    DOWN_SPLITS,
    HEAD_FEW,
    HEAD_MANY,
    LARGEST_TILE,
    MANY,
    NUMBERS,
    OUT,
    QUERIES,
    ROTATED_ROWS,
    ROW_TILE,
    SCORED_EXPERTS,
    SCORED_ROWS,
    SCORES,
    SUMMED,
    attention_warps,
    expert_tiles,
)
from llama_stack_gpt_oss.engine.sampler import PARAMETERS

H100 = 90
DEPENDENT_LAUNCH = 90  # the first compute capability that has it
# What is built for other compute capabilities than that of an H100: projections, and experts with the most memory.
ELSEWHERE = tuple(f"{name}-{block}" for name in ("up-group", "down-group") for block in (64, 128))
ELSEWHERE += ("out-64-splits-4", "head-64", "up-row", "down-row")
HIDDEN, WIDTH = 2880, 4096  # inputs of all projections, but for the one after attention
HEADS = {"QUERY_HEADS": 64, "KV_HEADS": 8}
DEPENDENT = {"DEPENDENT": True}
COMMON = {"WIDE": False, **DEPENDENT}
# Kernels that also read or write a KV cache in FP8, and the share of their bytes that remains.
IN_FP8 = {"rotate-row": 1, "rotate-prompt": 1, "attention-decode-splits-32": 0.5, "attention-prompt": 0.5}
OPERATION = re.compile(r"^\s*(?:@!?%\w+\s+)?([a-z][\w.:]*)\s*(.*?);", re.MULTILINE)  # of PTX
INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]+)\*/\s+(.*?) *;", re.MULTILINE)  # of a GPU, and its address
INSTRUCTION_BYTES = 16
BACK = re.compile(r"\bBRA 0x([0-9a-f]+)")
# In a cubin: the type and the flag of a section with code, the type of one with attributes, and the attribute of the
# registers, which follow the number of the kernel.
PROGRAM, EXECUTABLE, INFO = 1, 4, 0x70000000
REGISTERS = re.compile(rb"\x04\x2f\x08\x00.{4}(.{4})", re.DOTALL)
SPILL = re.compile(r"\b(?:STL|LDL)(?:\.LU)?(?:\.(64|128))?\b")  # writes or reads so many bits of local memory, or 32
BF16 = {"x", "norm", "weight", "bias", "queries", "keys", "values", "mixed", "out", "normed", "sinks", "inner"}
BF16 |= {"projected_rows", "following"}
F32 = {"cos", "sin", "logits", "scores", "partial", "parts", "temperatures", "best_scores", "shares", "warmths"}
F32 |= {"left", "fractions", "adjustments", "own_values"}
F32 |= {"maxima", "masses", "bounds", "kept", "totals"}
I64 = {"positions", "slots", "seeds", "tokens", "drawn", "unpacked", "chosen"}
PACKED = {"starts", "lengths", "entries", "addresses", "contents", "packed_tokens", "packed_positions", "row_entries"}
PACKED |= {"packed_sampled", "owners", "masks", "own_tokens"}  # pointers into the packed numbers of a step
I32 = {
    "tables",
    "best_tokens",
    "order",
    "counts",
    "cells",
    "bases",
    "numbers",
    "packed",
    "kept_tokens",
    "sizes",
    "arrived",
} | PACKED
U8 = {"scales", "blocks"}
FLOATS = {"epsilon", "softmax_scale", "limit", "coldest"}
OPTIONS = {"num_warps", "num_stages", "enable_fp_fusion"}
SIZES = {
    "hidden",
    "intermediate",
    "width",
    "strips",
    "inputs",
    "outputs",
    "size",
}  # integers that are constant for a model
FIXED = {"entry_count", "widest", "words", "part_count", "row_scales"}  # also constant, and no multiples of 16
SLICED = {"slots", "own_values"} | PACKED  # pointers into a step's tensors at an offset, so with any alignment


def kinds(kernel: Any, constants: Mapping[str, Any], fp8: bool) -> dict[str, str]:
    """Return the type of each argument by its name: names mean the same in all kernels.

    fp8: the KV cache is in FP8.
    """
    found = {}
    for name in kernel.arg_names:
        if name in constants:
            found[name] = "constexpr"
        elif name in FLOATS:
            found[name] = "fp32"
        else:
            groups = {"*bf16": BF16, "*fp32": F32, "*i64": I64, "*i32": I32, "*u8": U8}
            found[name] = next((kind for kind, names in groups.items() if name in names), "i32")
    if kernel.__name__.startswith(("up_", "down_")):
        found["scales"] = "*u8"
    if kernel is candidate_kernels.up_kernel:
        found["following"] = "*i32"
    if kernel is scaled_kernel:
        found["out"] = "*fp32"
    if fp8:
        found |= {"keys": "*fp8e4nv", "values": "*fp8e4nv"}
    return found


class Variant(NamedTuple):
    """A kernel with its constants and options, and the bytes that an iteration of its loop reads.

    They are of weights, of keys and values, or of what it reads in their place; without a loop, those of a program.
    """

    kernel: Any
    constants: dict[str, Any]
    read: float


def variants(shared: int) -> dict[str, Variant]:
    """Return each kernel as it is launched for a decode step of one row, for one of many rows, and for a prompt.

    shared: bytes of shared memory that a program may have.
    """
    found = {**dense(), **of_experts(shared), **attending(), **sampling_and_inputs(), **baselines(), **candidates()}
    for name, share in IN_FP8.items():
        kernel, constants, read = found[name]
        found[f"{name}-fp8"] = Variant(kernel, constants | {"fp8": True}, read * share)
    return found


def dense() -> dict[str, Variant]:
    """Return the kernels with dense weights. cuBLAS does the product before attention, and for prompts the one after."""
    found: dict[str, Variant] = {}
    for block in (16, 32, 64):
        for splits in (1, 4):
            strips = {**COMMON, **OUT.options(block), "SPLITS": splits}
            found[f"out-{block}-splits-{splits}"] = Variant(
                linear.out_kernel, strips, loaded(OUT.strip, WIDTH, OUT.depth, splits)
            )
        tiles = HEAD_MANY if block == LARGEST_TILE else HEAD_FEW
        strips = {**COMMON, **tiles.options(block), "enable_fp_fusion": False}
        read = loaded(tiles.strip, HIDDEN, tiles.depth)
        found[f"head-{block}"] = Variant(head.head_kernel, {**strips, "KEEP": False}, read)
        found[f"head-kept-{block}"] = Variant(head.head_kernel, {**strips, "KEEP": True}, read)
    pairs = {**HEADS, **DEPENDENT, "HALF": 32, "num_warps": 1}
    for name, block in (("row", 1), ("prompt", ROTATED_ROWS)):
        found[f"rotate-{name}"] = Variant(linear.rotate_kernel, {**pairs, "BLOCK_M": block}, block * 64 * 2)
    found["norm"] = Variant(norm.norm_kernel, {**DEPENDENT, "BLOCK": 4096}, HIDDEN * 2)
    found["route-row"] = Variant(norm.route_row_kernel, {**DEPENDENT, "BLOCK": 4096}, HIDDEN * 2)
    scored = {**COMMON, "BLOCK_M": SCORED_ROWS, "BLOCK_N": SCORED_EXPERTS, "BLOCK_K": 128}
    found["route-prompt"] = Variant(norm.route_kernel, scored, loaded(SCORED_EXPERTS, HIDDEN, 128))
    for parts in (4, 8):
        added = {**DEPENDENT, "PARTS": parts, "BLOCK_N": SUMMED}
        found[f"sum-{parts}"] = Variant(linear.sum_kernel, added, parts * SUMMED * 4)
    return found


def loaded(rows: int, inputs: int, depth: int, splits: int = 1, size: float = 2) -> float:
    """Return the bytes of weights that an iteration over rows of so many inputs reads in the mean.

    The last one reads a part of `depth` inputs. size: bytes of a weight.
    """
    return rows * size * inputs / splits / -(-inputs // (depth * splits))


def of_experts(shared: int) -> dict[str, Variant]:
    """Return the kernels of the experts, of which the 120b has more."""
    found = {}
    for size, count, blocks in (("", 32, (16, 32, 64, 128)), ("-120b", 128, (16, 128))):
        choice = {"EXPERTS": count, "CHOSEN": 4}
        rows = {**choice, **COMMON, **MANY.options(ROW_TILE)}
        read = loaded(MANY.strip, HIDDEN, MANY.depth, size=0.5)
        found[f"up-row{size}"] = Variant(experts.up_row_kernel, rows, read)
        read = loaded(MANY.strip, HIDDEN, MANY.depth, DOWN_SPLITS, size=0.5)
        found[f"down-row{size}"] = Variant(experts.down_row_kernel, {**rows, "SPLITS": DOWN_SPLITS}, read)
        for block in blocks:
            _, tiles = expert_tiles(block * count // 8, count, 4, shared)
            tile = {"EXPERTS": count, **COMMON, **tiles.options(block)}
            read = loaded(tiles.strip, HIDDEN, tiles.depth, size=0.5)
            found[f"up-group-{block}{size}"] = Variant(experts.up_group_kernel, {**tile, "CHOSEN": 4}, read)
            found[f"down-group-{block}{size}"] = Variant(experts.down_group_kernel, tile, read)
        block = SCORES // count
        grouped = {**choice, **DEPENDENT, "BLOCK_M": block}
        found[f"group{size}"] = Variant(experts.group_kernel, grouped, block * count * 4)
    return found


def attending() -> dict[str, Variant]:
    """Return attention for decodes, without and with four drafts, and for prompts; and the merge of its splits."""
    found, constants = {}, {**HEADS, **COMMON, "SIZE": 64, "BLOCK_TOKENS": 64}
    for name, window, queries, block, splits in (
        *((f"decode-splits-{splits}", 0, 1, 16, splits) for splits in (8, 32)),
        ("decode-window", 128, 1, 16, 1),
        ("drafts-splits-16", 0, 5, 64, 16),
        ("drafts-window", 128, 5, 64, 1),
        ("prompt", 0, QUERIES, 128, 1),
        ("prompt-window", 128, QUERIES, 128, 1),
    ):
        cut = {"WINDOW": window, "BLOCK_Q": queries, "BLOCK_M": block, "SPLITS": splits}
        cut["num_warps"] = attention_warps(block)
        found[f"attention-{name}"] = Variant(attention.attention_kernel, {**constants, **cut}, 2 * 64 * 64 * 2)
    for splits in (8, 32):
        merged = {**DEPENDENT, "QUERY_HEADS": 64, "SIZE": 64, "SPLITS": splits}
        found[f"merge-{splits}"] = Variant(attention.merge_kernel, merged, splits * 66 * 4)
    return found


def sampling_and_inputs() -> dict[str, Variant]:
    adjust = {"PARAMETERS": PARAMETERS, "BLOCK": CANDIDATES, "enable_fp_fusion": False}
    weigh = adjust | {"PARTS": 128}
    unpack = {"BLOCK_TOKENS": 64, "KV_GROUPS": 2, "BLOCK": NUMBERS}
    return {
        "pick": Variant(head.pick_kernel, {**DEPENDENT, "BLOCK": 4096}, 4096 * 4),
        "adjust": Variant(sampling.adjust_kernel, adjust, CANDIDATES * 4),
        "weigh": Variant(sampling.weigh_kernel, weigh, CANDIDATES * 4),
        "gather": Variant(sampling.gather_kernel, weigh, CANDIDATES * 4),
        "redraw": Variant(sampling.redraw_kernel, weigh | {"num_warps": 8}, CANDIDATES * 4),
        "write": Variant(inputs.write_kernel, {"BLOCK": NUMBERS}, NUMBERS * 8),
        "unpack": Variant(inputs.unpack_kernel, unpack, NUMBERS * 20),
    }


def baselines() -> dict[str, Variant]:
    """Return the kernel with `tl.dot_scaled` that the benchmark times, with the tiles of its timed rows."""
    found = {}
    for block in (16, 64):
        tile = {"BLOCK_M": block, "BLOCK_N": SCALED_STRIP, "BLOCK_K": DEPTH, "num_warps": 4}
        found[f"scaled-{block}"] = Variant(scaled_kernel, tile, loaded(SCALED_STRIP, HIDDEN, DEPTH, size=0.5))
    return found


def candidates() -> dict[str, Variant]:
    """Return the kernels that the benchmark times as candidates."""
    pairs = {**HEADS, **DEPENDENT, "HALF": 32, "BLOCK_M": 1, "num_warps": 1}
    summed = {**DEPENDENT, "BLOCK": 4096, "num_warps": 8}
    window = {**HEADS, **COMMON, "SIZE": 64, "BLOCK_TOKENS": 64, "WINDOW": 128, "BLOCK_M": 16}
    choice = {"EXPERTS": 32, "CHOSEN": 4, "RANKED": True, "AHEAD": True, "WARPS": TOGETHER.tiles.warps}
    rows = {**choice, **COMMON, **TOGETHER.tiles.options(ROW_TILE)}
    found = {
        "candidate-rotate": Variant(candidate_kernels.rotate_ahead_kernel, pairs, 64 * 2),
        "candidate-norm": Variant(candidate_kernels.sum_norm_kernel, {**summed, "PARTS": 8}, 8 * HIDDEN * 4),
        "candidate-route": Variant(candidate_kernels.sum_route_kernel, {**summed, "PARTS": 4}, 4 * HIDDEN * 4),
        "candidate-window": Variant(candidate_kernels.window_kernel, window, 2 * 128 * 64 * 2),
    }
    for name, kernel, splits in (("up", candidate_kernels.up_kernel, 2), ("down", candidate_kernels.down_kernel, 4)):
        read = loaded(MANY.strip, HIDDEN, TOGETHER.depth, splits, size=0.5)
        found[f"candidate-{name}"] = Variant(kernel, {**rows, "SPLITS": splits}, read)
    return found


class Built(NamedTuple):
    """A compiled kernel, and the type of each argument by its name."""

    compiled: Any
    signature: dict[str, str]


def build(variant: Variant, capability: int) -> Built:
    """Compile a kernel for a compute capability. Triton raises an error if the assembler refuses the code."""
    kernel, constants = variant.kernel, dict(variant.constants)
    if capability < DEPENDENT_LAUNCH and "DEPENDENT" in constants:
        constants["DEPENDENT"] = False
    options = {"enable_fp_fusion": True} | {name: constants[name] for name in OPTIONS & constants.keys()}
    constants = {name: value for name, value in constants.items() if name not in OPTIONS}
    fp8 = constants.pop("fp8", False)
    signature = kinds(kernel, constants, fp8)
    # As at a launch: pointers and sizes are known to be multiples of 16.
    aligned = [
        (place,)
        for place, (name, kind) in enumerate(signature.items())
        if (kind.startswith("*") and name not in SLICED) or (kind == "i32" and name in SIZES)
    ]
    attributes = {place: [["tt.divisibility", 16]] for place in aligned}
    source = ASTSource(kernel, signature, {(kernel.arg_names.index(n),): v for n, v in constants.items()}, attributes)
    return Built(triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options), signature)


def measured(kernels: Mapping[str, Variant]) -> dict[str, dict[str, Any]]:
    """Return what each kernel uses that is built for an H100, and its `specialized` arguments.

    spills: bytes that its instructions write to local memory or read from it. products: its tensor-core instructions by
    name. per_byte: instructions of all warps for each byte that it reads. early: see `read_before_wait`.
    """
    found = {name: build(variant, H100) for name, variant in kernels.items()}
    cubins = [read_cubin(each.compiled.asm["cubin"]) for each in found.values()]
    codes = disassembled([cubin.code for cubin in cubins])
    return {
        name: {
            "registers": cubin.registers,
            "spills": sum(int(bits or 32) // 8 for text in code.values() for bits in SPILL.findall(text)),
            "shared": built.compiled.metadata.shared,
            "products": Counter(name for text in code.values() for name in re.findall(r"\bHG?MMA\.[0-9x]+", text)),
            "specialized": specialized(kernels[name].kernel, built.signature),
            "per_byte": instructions(built.compiled, code) * built.compiled.metadata.num_warps / kernels[name].read,
            "early": read_before_wait(built),
        }
        for (name, built), cubin, code in zip(found.items(), cubins, codes, strict=True)
    }


def instructions(compiled: Any, code: Mapping[int, str]) -> float:
    """Return the instructions of an iteration of the loop that reads ahead, or of the whole kernel without such a loop.

    What fills up the end of a kernel does not count: jumps, and instructions that do nothing. The assembler may unroll
    the loop, so that it commits the groups of loads of several iterations.
    """
    body = compiled.asm["ttgir"].partition("scf.for")[2].partition("scf.yield")[0]
    if "async_commit_group" not in body:
        return sum(not text.startswith(("NOP", "BRA ")) for text in code.values())
    loop = longest_loop(code)
    return len(loop) * body.count("async_commit_group") / sum("LDGDEPBAR" in text for text in loop)


def read_before_wait(built: Built) -> list[str] | None:
    """Return the arguments that a kernel reads before it waits for the one before it; None: no wait.

    Raises ValueError if it writes or branches before, or does not let the next one start after the wait.
    """
    arguments = [name if kind.startswith("*") else "" for name, kind in built.signature.items() if kind != "constexpr"]
    before, wait, after = built.compiled.asm["ptx"].partition("griddepcontrol.wait")
    if not wait:
        return None
    if "launch_dependents" in before or "launch_dependents" not in after:
        raise ValueError("the next kernel starts too early or late")
    sources: dict[str, set[str]] = {}
    read: set[str] = set()
    for operation, operands in OPERATION.findall(before.partition("{")[2]):
        registers = re.findall(r"%\w+", operands)
        parameter = re.search(r"_param_(\d+)\]", operands)
        found = set().union(*(sources.get(register, set()) for register in registers))
        if operation.startswith(("st.global", "bra", "atom", "red")):
            raise ValueError(f"{operation} {operands}")
        if operation.startswith(("ld.global", "cp.async")):
            read |= found
        elif parameter and arguments[int(parameter[1]) :][:1] not in ([], [""]):
            sources[registers[0]] = {arguments[int(parameter[1])]}
        elif registers:
            sources[registers[0]] = found
    return sorted(read)


def longest_loop(code: Mapping[int, str]) -> list[str]:
    """Return the instructions of the longest loop: those from an address to a branch back to it."""
    branches = ((end, BACK.search(text)) for end, text in code.items())
    bounds = [(int(branch[1], 16), end) for end, branch in branches if branch and int(branch[1], 16) <= end]
    return max(([text for address, text in code.items() if first <= address <= end] for first, end in bounds), key=len)


class Cubin(NamedTuple):
    """The code of a kernel, and how many registers a thread of it has."""

    code: bytes
    registers: int


def read_cubin(cubin: bytes) -> Cubin:
    """Return what the sections of the ELF file of one kernel have."""
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count = struct.unpack_from("<HH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + size * number) for number in range(count)]
    sections = [(kind, flags, cubin[start : start + length]) for _, kind, flags, _, start, length in headers]
    (code,) = [content for kind, flags, content in sections if kind == PROGRAM and flags & EXECUTABLE]
    (registers,) = [found for kind, _, content in sections if kind == INFO for found in REGISTERS.findall(content)]
    return Cubin(code, int.from_bytes(registers, "little"))


def disassembled(codes: Sequence[bytes]) -> list[dict[int, str]]:
    """Return the instructions of each code by their addresses. They are one file: a start takes half a second."""
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        file.write(b"".join(codes))
        file.flush()
        command = [knobs.nvidia.nvdisasm.path, "--binary", f"SM{H100}a", "--no-dataflow", file.name]
        found = INSTRUCTION.findall(subprocess.check_output(command, text=True))
    every = {int(address, 16): text for address, text in found}
    ends = list(accumulate(map(len, codes)))
    assert len(every) * INSTRUCTION_BYTES == ends[-1]
    return [
        {address: every[address] for address in range(end - len(code), end, INSTRUCTION_BYTES)}
        for code, end in zip(codes, ends, strict=True)
    ]


def specialized(kernel: Any, signature: Mapping[str, str]) -> list[str]:
    """Return the arguments that change from step to step and select a build by their value or alignment."""
    parameters = {parameter.name: parameter for parameter in kernel.params}
    values = [name for name, kind in signature.items() if kind == "i32" and name not in SIZES | FIXED]
    return [name for name in values if not parameters[name].do_not_specialize] + [
        name for name in SLICED & signature.keys() if not parameters[name].do_not_specialize_on_alignment
    ]


if __name__ == "__main__":
    found: dict[str, dict[str, Any]] = {}
    for argument in sys.argv[1:]:
        capability, kib = map(int, argument.split("="))
        kernels = variants(kib * 1024)
        found[str(capability)] = (
            measured(kernels)
            if capability == H100
            else {name: {"shared": build(kernels[name], capability).compiled.metadata.shared} for name in ELSEWHERE}
        )
    print(json.dumps({"triton": triton.__version__, **found}))
