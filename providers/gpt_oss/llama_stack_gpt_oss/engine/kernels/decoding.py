"""Decodes MXFP4 weights, in the arrangement of `mxfp4.pack`, into the operand of a product.

The bits of two FP4 values move to the places that sign, low exponent bits and high mantissa bit have in a pair of bf16
values, which is a value times 2 ** -126; a multiplication by the scale corrects the exponents. A GPU does so in PTX,
with one instruction for both values. It adds -0, which changes no product: the instruction that only multiplies pairs
of bf16 needs compute capability 9.0. Triton's interpreter has neither PTX nor products of bf16: there, and for f32, the
same is plain Triton, and the operand is in f32.
"""

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
# Decoded weights are smaller by this factor, so that each scale of `mxfp4.LARGEST_SCALE` or less has a bf16 factor.
SHRUNK = tl.constexpr(2.0**31)

# $8: a word of eight values, $9: the factor in both halves. Pair n is ($2n, $2n + 1).
PAIRS = tl.constexpr(
    """{
    .reg .b32 a, b, c, d, e, zero;
    mov.b32 zero, 0x80008000;
    shl.b32 a, $8, 2;
    shl.b32 b, $8, 6;
    shf.l.wrap.b32 c, $8, $8, 28;
    shr.u32 e, $8, 8;
    and.b32 a, a, 0x81C081C0;
    and.b32 b, b, 0x81C081C0;
    and.b32 c, c, 0x81C081C0;
    and.b32 e, e, 0x00400040;
    lop3.b32 d, $8, 0x81808180, e, 0xEA;
    fma.rn.bf16x2 a, a, $9, zero;
    fma.rn.bf16x2 b, b, $9, zero;
    fma.rn.bf16x2 c, c, $9, zero;
    fma.rn.bf16x2 d, d, $9, zero;
    mov.b32 {$0, $1}, a;
    mov.b32 {$2, $3}, b;
    mov.b32 {$4, $5}, c;
    mov.b32 {$6, $7}, d;
    }"""
)


@triton.jit
def decoded(words, scales, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, WIDE: tl.constexpr):  # noqa: N803
    """Convert words [BLOCK_N, BLOCK_K / 8] and scales [BLOCK_N, BLOCK_K / 32] to [BLOCK_N, BLOCK_K], over SHRUNK.

    WIDE: do not round to bf16, in which values with scales below 2 ** -94 lose bits.
    """
    GROUPS: tl.constexpr = BLOCK_K // 32  # noqa: N806
    # 2 ** (scale - 127 + 126 - 31), as the exponent of a bf16 in both halves or of an f32.
    scales = scales.to(tl.int32)
    factors = (scales + 95) << 23 if WIDE or INTERPRETED else scales * 0x00800080 + 95 * 0x00800080
    factors = tl.reshape(tl.broadcast_to(factors[:, :, None], (BLOCK_N, GROUPS, 4)), (BLOCK_N, GROUPS * 4))
    if WIDE or INTERPRETED:
        values = _plain(words.to(tl.uint32, bitcast=True), factors.to(tl.float32, bitcast=True))
        if not WIDE:
            values = values.to(tl.bfloat16).to(tl.float32)
    else:
        a, b, c, d, e, f, g, h = tl.inline_asm_elementwise(
            PAIRS, "=h,=h,=h,=h,=h,=h,=h,=h,r,r", [words, factors], dtype=(tl.bfloat16,) * 8, is_pure=True, pack=1
        )
        values = _joined(a, b, c, d, e, f, g, h)
    # Word t has the values 2t and 2t + 1 of each quarter of its group: a lane of the tensor cores needs these.
    values = tl.permute(tl.reshape(values, (BLOCK_N, GROUPS, 4, 2, 2, 2)), (0, 1, 5, 4, 2, 3))
    return tl.reshape(values, (BLOCK_N, BLOCK_K))


@triton.jit
def _plain(words, factors):
    """Do what PAIRS does, in f32."""
    a = (words << 2) & 0x81C081C0
    b = (words << 6) & 0x81C081C0
    c = ((words << 28) | (words >> 4)) & 0x81C081C0
    d = (words & 0x81808180) | ((words >> 8) & 0x00400040)
    return _joined(
        _half(a << 16, factors),
        _half(a, factors),
        _half(b << 16, factors),
        _half(b, factors),
        _half(c << 16, factors),
        _half(c, factors),
        _half(d << 16, factors),
        _half(d, factors),
    )


@triton.jit
def _half(bits, factors):
    """Multiply the bf16 values in the upper halves by the factors."""
    return (bits & 0xFFFF0000).to(tl.float32, bitcast=True) * factors


@triton.jit
def _joined(a, b, c, d, e, f, g, h):
    return tl.join(tl.join(tl.join(a, b), tl.join(c, d)), tl.join(tl.join(e, f), tl.join(g, h)))
