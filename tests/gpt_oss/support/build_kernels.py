"""Build every kernel for compute capability 9.0 at the dimensions of gpt-oss-20b, and print the report of ptxas.

It runs in a separate process: where kernels are interpreted, there is nothing to build.
"""

import json
import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from llama_stack_gpt_oss.engine.kernels import attention, experts, head, inputs, linear, sampling
from llama_stack_gpt_oss.engine.kernels.triton_ops import CANDIDATES, FEW, MANY, NUMBERS, ROW_TILE, SUMMED, dense_stages
from llama_stack_gpt_oss.engine.sampler import PARAMETERS

H100 = GPUTarget("cuda", 90, 32)
INPUTS = 2880  # of both projections of an expert
HEADS = {"QUERY_HEADS": 64, "KV_HEADS": 8}
CHOICE = {"EXPERTS": 32, "CHOSEN": 4}
BF16 = {"x", "norm", "weight", "bias", "queries", "keys", "values", "mixed", "out", "normed", "sinks", "inner"}
F32 = {"cos", "sin", "logits", "scores", "partial", "parts", "temperatures", "best_scores", "shares", "warmths"}
F32 |= {"left", "fractions", "adjustments", "own_values"}
I64 = {"positions", "slots", "seeds", "tokens", "drawn", "unpacked", "chosen"}
PACKED = {"starts", "lengths", "entries", "addresses", "contents", "packed_tokens", "packed_positions", "row_entries"}
PACKED |= {"packed_sampled", "owners", "masks", "own_tokens"}  # pointers into the packed numbers of a step
I32 = {"tables", "best_tokens", "order", "counts", "cells", "bases", "numbers", "packed"} | PACKED
U8 = {"scales"}
FLOATS = {"epsilon", "softmax_scale", "limit", "coldest"}
OPTIONS = {"num_warps", "num_stages", "enable_fp_fusion"}
SIZES = {"hidden", "intermediate", "width", "strips"}  # integers that are constant for a model
FIXED = {"entry_count", "widest", "words"}  # also constant, and no multiples of 16
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
    if fp8:
        found |= {"keys": "*fp8e4nv", "values": "*fp8e4nv"}
    return found


def variants() -> dict[str, tuple[Any, dict[str, Any]]]:
    """Return each kernel as it is launched for a decode step of one row, for one of many rows, and for a prompt."""
    created: dict[str, tuple[Any, dict[str, Any]]] = {}
    for block in (16, 64):
        tile = {"BLOCK_M": block, "WIDE": False}
        dense = {**tile, "num_stages": dense_stages(block)}
        grouped = {"WIDE": False, **MANY.options(block)}
        created |= {
            f"qkv-{block}": (linear.qkv_kernel, {**HEADS, **dense, "HALF": 32, "BLOCK_P": 16, "BLOCK_K": 64}),
            f"out-{block}": (linear.out_kernel, {**dense, "BLOCK_N": 16, "BLOCK_K": 128}),
            f"head-{block}": (
                head.head_kernel,
                {**tile, "BLOCK_N": 64, "BLOCK_K": 64, "KEEP": False, "enable_fp_fusion": False},
            ),
            f"head-kept-{block}": (
                head.head_kernel,
                {**tile, "BLOCK_N": 64, "BLOCK_K": 64, "KEEP": True, "enable_fp_fusion": False},
            ),
            f"up-group-{block}": (experts.up_group_kernel, {**grouped, "CHOSEN": 4}),
            f"down-group-{block}": (experts.down_group_kernel, grouped),
        }
    created["route-row"] = (linear.route_row_kernel, {"BLOCK": 4096})
    created["route-64"] = (linear.route_kernel, {"BLOCK_M": 64, "WIDE": False, "BLOCK_N": 16, "BLOCK_K": 64})
    rows = {**CHOICE, "WIDE": False, **FEW.options(ROW_TILE)}
    created |= {"up-row": (experts.up_row_kernel, rows), "down-row": (experts.down_row_kernel, rows)}
    created |= {f"group-{block}": (experts.group_kernel, {**CHOICE, "BLOCK_M": block}) for block in (16, 128)}
    constants = {**HEADS, "SIZE": 64, "BLOCK_TOKENS": 64, "WIDE": False}
    for name, window, queries, block, splits in (
        ("decode-all", 0, 1, 16, 16),
        ("decode-window", 128, 1, 16, 1),
        ("drafts-all", 0, 5, 64, 16),
        ("drafts-window", 128, 5, 64, 1),
        ("prompt-all", 0, 16, 128, 1),
        ("prompt-window", 128, 16, 128, 1),
    ):
        cut = {"WINDOW": window, "BLOCK_Q": queries, "BLOCK_M": block, "SPLITS": splits}
        created[f"attention-{name}"] = (attention.attention_kernel, {**constants, **cut})
    created |= {
        f"{name}-fp8": (created[name][0], created[name][1] | {"fp8": True})
        for name in ("qkv-16", "qkv-64", "attention-decode-all", "attention-drafts-all", "attention-prompt-all")
    }
    created["write"] = (inputs.write_kernel, {"BLOCK": NUMBERS})
    created["unpack"] = (inputs.unpack_kernel, {"BLOCK_TOKENS": 64, "KV_GROUPS": 2, "BLOCK": NUMBERS})
    redraw = {"PARAMETERS": PARAMETERS, "BLOCK": CANDIDATES, "num_warps": 8, "enable_fp_fusion": False}
    created["redraw"] = (sampling.redraw_kernel, redraw)
    created["sum"] = (experts.sum_kernel, {"CHOSEN": 4, "BLOCK_N": SUMMED})
    created["pick"] = (head.pick_kernel, {"BLOCK": 4096})
    created["merge"] = (attention.merge_kernel, {"QUERY_HEADS": 64, "SIZE": 64, "SPLITS": 16})
    return created


def build(kernel: Any, constants: dict[str, Any]) -> dict[str, Any]:
    """Return the registers, spilled bytes and shared memory of a kernel, and its `specialized` arguments.

    products: number of tensor-core instructions. per_byte: of the experts' kernels.
    """
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
    compiled = triton.compile(source, target=H100, options=options)
    assembly = assembled(compiled.asm["ptx"])
    spills = sum(int(number) for number in re.findall(r"(\d+) bytes spill", assembly))
    registers = max(int(number) for number in re.findall(r"Used (\d+) registers", assembly))
    return {
        "registers": registers,
        "spills": spills,
        "shared": compiled.metadata.shared,
        "products": len(re.findall(r"\bHG?MMA\b", disassembled(compiled.asm["cubin"]))),
        "specialized": specialized(kernel, signature),
        "per_byte": instructions_per_byte(compiled, constants) if kernel.__name__.startswith(("up_", "down_")) else 0,
    }


def instructions_per_byte(compiled: Any, constants: Mapping[str, Any]) -> float:
    """Return the instructions of all warps for each byte of an expert's weights, in the loop that reads them.

    The last iteration is a part of one, and takes as many instructions.
    """
    loop = longest_loop(disassembled(compiled.asm["cubin"]))
    body = compiled.asm["ttgir"].partition("scf.for")[2].partition("scf.yield")[0]
    # The assembler may unroll the loop, so that it commits the groups of loads of several iterations.
    iterations = sum("LDGDEPBAR" in line for line in loop) / body.count("async_commit_group")
    needed = -(-INPUTS // constants["BLOCK_K"])
    return needed / iterations * len(loop) * compiled.metadata.num_warps / (constants["BLOCK_N"] * INPUTS // 2)


def longest_loop(code: str) -> list[str]:
    """Return the instructions of the longest loop: those from a label to a branch back to it."""
    labels: dict[str, int] = {}
    instructions: list[str] = []
    loops: list[list[str]] = []
    for line in code.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(instructions)
        elif found := re.match(r"\s*/\*[0-9a-f]+\*/\s+(.*?);", line):
            instructions.append(found[1])
            back = re.search(r"\bBRA\b.*`\((\.L_x_\d+)\)", found[1])
            if back and back[1] in labels:
                loops.append(instructions[labels[back[1]] :])
    return max(loops, key=len)


def disassembled(cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.check_output([knobs.nvidia.nvdisasm.path, "-c", file.name], text=True)


def specialized(kernel: Any, signature: Mapping[str, str]) -> list[str]:
    """Return the arguments that change from step to step and select a build by their value or alignment."""
    parameters = {parameter.name: parameter for parameter in kernel.params}
    values = [name for name, kind in signature.items() if kind == "i32" and name not in SIZES | FIXED]
    return [name for name in values if not parameters[name].do_not_specialize] + [
        name for name in SLICED & signature.keys() if not parameters[name].do_not_specialize_on_alignment
    ]


def assembled(ptx: str) -> str:
    """Return the report of the assembler that Triton uses, which is part of its wheel."""
    assembler = get_ptxas(H100.arch).path
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(ptx)
        command = [assembler, "-v", "-arch=sm_90a", str(path), "-o", str(Path(folder) / "kernel.cubin")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stderr


if __name__ == "__main__":
    print(json.dumps({name: build(*variant) for name, variant in variants().items()}))
