"""Values of the language that exist outside of kernels: element types, constants, and the names of
its functions, which only a kernel can call."""

from __future__ import annotations

import enum
from typing import Any, Callable


class Primitive:
    """A function of the language, by its name: kernels are compiled from their source, so that
    calling it anywhere else is a mistake."""

    def __init__(self, name: str) -> None:
        self.name = self.__name__ = self.__qualname__ = name
        self.__module__ = "kiln.language"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            f"kiln.language.{self.name} is for kernels: call it in a function that @kiln.kernel decorates"
        )

    def __repr__(self) -> str:
        return f"<kiln.language.{self.name}>"


#: Bits of the mantissa of floats, without the leading one, and what is added to the exponent.
_FLOATS = {
    "fp8e4b15": (3, 15),
    "fp8e4nv": (3, 7),
    "fp8e4b8": (3, 8),
    "fp8e5": (2, 15),
    "fp8e5b16": (2, 16),
    "fp16": (10, 15),
    "bf16": (7, 127),
    "fp32": (23, 127),
    "fp64": (52, 1023),
}

#: Element types by name.
_DTYPES: dict[str, dtype] = {}


class dtype:  # noqa: N801
    """An element type. Kernels cast by `x.to(kl.float16)`, and take one as a constant argument."""

    class SIGNEDNESS(enum.Enum):
        """Of integers."""

        SIGNED = 0
        UNSIGNED = 1

    class KIND(enum.Enum):
        """In the order of promotion."""

        BOOLEAN = 0
        INTEGRAL = 1
        FLOATING = 2

    def __init__(self, name: str, kind: str = "", bits: int = 0) -> None:
        known = _DTYPES.get(name)
        self.name = name
        # `float`, `int`, `uint`, `pointer` or `void`.
        self._kind = kind or (known._kind if known is not None else "void")
        self.primitive_bitwidth = bits or (known.primitive_bitwidth if known is not None else 0)
        self.itemsize = max(self.primitive_bitwidth // 8, 1)
        _DTYPES.setdefault(name, self)

    def __getattr__(self, name: str) -> Any:
        # `is_fp16` and so on: whether it is the type of that name.
        named = name.removeprefix("is_")
        if name.startswith("is_") and named in _DTYPES:
            return lambda: self.name == named
        raise AttributeError(f"'dtype' object has no attribute {name!r}")

    def is_floating(self) -> bool:
        return self._kind == "float"

    def is_standard_floating(self) -> bool:
        return self.name in self.STANDARD_FP_TYPES

    def is_int(self) -> bool:
        return self._kind in ("int", "uint")

    def is_int_signed(self) -> bool:
        return self._kind == "int"

    def is_int_unsigned(self) -> bool:
        return self._kind == "uint"

    def is_bool(self) -> bool:
        return self.name == "int1"

    def is_fp8(self) -> bool:
        return self.name.startswith("fp8")

    def is_ptr(self) -> bool:
        return self._kind == "pointer"

    def is_block(self) -> bool:
        return False

    def is_const(self) -> bool:
        return bool(getattr(self, "const", False))

    def kind(self) -> KIND:
        """Its place in the order of promotion."""
        if self.is_bool():
            return self.KIND.BOOLEAN
        return self.KIND.INTEGRAL if self.is_int() else self.KIND.FLOATING

    @property
    def int_bitwidth(self) -> int:
        """Bits of an integer."""
        return self._of_integers(self.primitive_bitwidth, "int_bitwidth")

    @property
    def int_signedness(self) -> SIGNEDNESS:
        """Whether an integer has a sign."""
        signed = self.SIGNEDNESS.SIGNED if self.is_int_signed() else self.SIGNEDNESS.UNSIGNED
        return self._of_integers(signed, "int_signedness")

    def get_int_max_value(self) -> int:
        """The largest integer."""
        bits = self.primitive_bitwidth - int(self.is_int_signed())
        return self._of_integers((1 << bits) - 1, "get_int_max_value")

    def get_int_min_value(self) -> int:
        """The least integer."""
        least = -(1 << (self.primitive_bitwidth - 1)) if self.is_int_signed() else 0
        return self._of_integers(least, "get_int_min_value")

    def _of_integers(self, value: Any, name: str) -> Any:
        if not self.is_int():
            raise AttributeError(f"{self.name} has no {name}: it is not an integer type")
        return value

    def _of_floats(self, place: int, name: str) -> int:
        if self.name not in _FLOATS:
            raise AttributeError(f"{self.name} has no {name}: it is not a float type")
        return _FLOATS[self.name][place]

    @property
    def fp_mantissa_width(self) -> int:
        """Bits of the mantissa of a float, without the leading one."""
        return self._of_floats(0, "fp_mantissa_width")

    @property
    def exponent_bias(self) -> int:
        """What is added to the exponent of a float in its bits."""
        return self._of_floats(1, "exponent_bias")

    @staticmethod
    def is_dtype(name: str) -> bool:
        """Whether an element type has this name."""
        return name in _DTYPES

    def codegen_name(self) -> str:
        """The name under which the language has it: `float16` of `fp16`."""
        for short, long in (("fp", "float"), ("bf", "bfloat")):
            if self.name.startswith(short):
                return long + self.name[2:]
        return self.name

    @property
    def cache_key_part(self) -> str:
        return self.name

    SINT_TYPES = ("int8", "int16", "int32", "int64")
    UINT_TYPES = ("int1", "uint8", "uint16", "uint32", "uint64")
    FP_TYPES = ("fp8e4b15", "fp8e4nv", "fp8e4b8", "fp8e5", "fp8e5b16", "fp16", "bf16", "fp32", "fp64")
    STANDARD_FP_TYPES = ("fp16", "bf16", "fp32", "fp64")
    OTHER_TYPES = ("void",)

    @property
    def scalar(self) -> dtype:
        return self

    @property
    def element_ty(self) -> dtype:
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dtype) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"kiln.language.{self.name}"

    def __str__(self) -> str:
        return self.name


void = dtype("void", "void", 0)
int1 = dtype("int1", "uint", 1)
int8 = dtype("int8", "int", 8)
int16 = dtype("int16", "int", 16)
int32 = dtype("int32", "int", 32)
int64 = dtype("int64", "int", 64)
uint8 = dtype("uint8", "uint", 8)
uint16 = dtype("uint16", "uint", 16)
uint32 = dtype("uint32", "uint", 32)
uint64 = dtype("uint64", "uint", 64)
float8e4nv = dtype("fp8e4nv", "float", 8)
float8e5 = dtype("fp8e5", "float", 8)
# Formats of other makers: kernels refuse them by name.
float8e4b15 = dtype("fp8e4b15", "float", 8)
float8e4b8 = dtype("fp8e4b8", "float", 8)
float8e5b16 = dtype("fp8e5b16", "float", 8)
float16 = dtype("fp16", "float", 16)
bfloat16 = dtype("bf16", "float", 16)
float32 = dtype("fp32", "float", 32)
float64 = dtype("fp64", "float", 64)


class pointer_type(dtype):  # noqa: N801
    """The type of pointers to elements."""

    def __init__(self, element_ty: dtype, *, const: bool = False) -> None:
        super().__init__(f"pointer<{element_ty}>", "pointer", 64)
        self.pointee = element_ty
        self.const = const

    @property
    def element_ty(self) -> dtype:
        return self.pointee


class constexpr:  # noqa: N801
    """A value that is known when a kernel is compiled: a global that kernels may read, and the
    annotation of a parameter that is a constant of the launch."""

    def __init__(self, value: Any) -> None:
        while isinstance(value, constexpr):
            value = value.value
        self.value = value

    def __repr__(self) -> str:
        return f"constexpr[{self.value!r}]"

    def __index__(self) -> int:
        return int(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __hash__(self) -> int:
        return hash(self.value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.value(*args, **kwargs)


def _number(value: Any) -> Any:
    return value.value if isinstance(value, constexpr) else value


def _binary(name: str, *, swapped: bool = False) -> Callable[[constexpr, Any], constexpr]:
    def method(self: constexpr, other: Any) -> constexpr:
        left, right = (_number(other), self.value) if swapped else (self.value, _number(other))
        return constexpr(getattr(left, name)(right))

    return method


def _unary(name: str) -> Callable[[constexpr], constexpr]:
    def method(self: constexpr) -> constexpr:
        return constexpr(getattr(self.value, name)())

    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor"):
    setattr(constexpr, f"__{_name}__", _binary(f"__{_name}__"))
    setattr(constexpr, f"__r{_name}__", _binary(f"__{_name}__", swapped=True))
for _name in ("lshift", "rshift", "eq", "ne", "lt", "le", "gt", "ge"):
    setattr(constexpr, f"__{_name}__", _binary(f"__{_name}__"))
for _name in ("neg", "pos", "invert"):
    setattr(constexpr, f"__{_name}__", _unary(f"__{_name}__"))


class Array:
    """A tensor that a kernel indexes, as `x[i : i + BLOCK, 0]`: it knows its sizes and strides, and
    elements outside read as 0 and are not written. The annotation of a parameter, or what an
    argument is wrapped in."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor


class tensor:  # noqa: N801
    """A block of values in a kernel; only for annotations and `isinstance` in kernels."""


class tuple_type:  # noqa: N801
    """The type of a tuple in a kernel."""


class base_value:  # noqa: N801
    """A value in a kernel; only for annotations."""


class base_type:  # noqa: N801
    """The type of a value in a kernel; only for annotations."""


class block_type:  # noqa: N801
    """The type of a block in a kernel; only for annotations."""


class constexpr_type:  # noqa: N801
    """The type of a constant in a kernel; only for annotations."""


class tensor_descriptor:  # noqa: N801
    """A descriptor in a kernel; only for annotations and `isinstance` in kernels."""


tensor_descriptor_base = tensor_descriptor


class const:
    """Annotates a pointer that a kernel never writes through."""


class PropagateNan:
    """What `maximum` and `minimum` do with NaN."""

    NONE = constexpr("PropagateNan.NONE")
    ALL = constexpr("PropagateNan.ALL")


#: The most elements of a block.
MAX_NUMEL = 1 << 20

#: Functions by family; each is a name of `kiln.language`.
PRIMITIVES = """
program_id num_programs arange full zeros zeros_like cast broadcast broadcast_to expand_dims
reshape view permute trans ravel join split cat interleave flip gather squeeze unsqueeze
load store atomic_add atomic_max atomic_min atomic_and atomic_or atomic_xor atomic_xchg atomic_cas
make_block_ptr advance make_tensor_descriptor load_tensor_descriptor store_tensor_descriptor
dot dot_scaled where add sub mul maximum minimum clamp fma umulhi fdiv div_rn sqrt_rn
exp exp2 log log2 sin cos sqrt rsqrt erf floor ceil abs sigmoid softmax cdiv swizzle2d
sum max min argmax argmin xor_sum reduce_or reduce associative_scan cumsum cumprod histogram
sort topk bitonic_merge
rand randn randint rand4x randn4x randint4x philox philox_impl uint_to_uniform_float
pair_uniform_to_normal
range static_range static_assert static_print device_print device_assert debug_barrier assume
multiple_of max_contiguous max_constancy inline_asm_elementwise map_elementwise condition
to_tensor expect_zero tuple slice
""".split()

#: Functions of `kiln.language.extra.libdevice`.
LIBDEVICE = """
abs acos acosh add_rn asin asinh atan atan2 atanh brev cbrt ceil clz copysign cos cosh cospi
div_rn erf erfc erfinv exp exp10 exp2 expm1 fast_cosf fast_dividef fast_exp10f fast_expf
fast_log10f fast_log2f fast_logf fast_powf fast_sinf fast_tanf ffs finitef float2int_rn
float_as_int floor fma fmod hypot int2float_rn int_as_float isfinited isinf isnan j0 ldexp lgamma
llrint log log10 log1p log2 logb mulhi mul_rn nearbyint nextafter pow popc rcp_rn remainder rint
round rsqrt rsqrt_rn saturatef signbit sin sinh sinpi sqrt sqrt_rn tan tanh tgamma trunc umulhi
fabs fast_exp2f fast_sqrtf fast_tanhf fdim fmax fmin isinff isnanf relu sqrtf tanh_approx
""".split()

#: Functions of `kiln.language.extra.cuda`.
CUDA = "gdc_wait gdc_launch_dependents globaltimer smid num_threads num_warps".split()

#: Functions without a place in `kiln.language` that kernels of Triton import from its modules.
_IMPORTED = ("_log2", "get_int_dtype")

_FOUND: dict[str, Primitive] = {}


def __getattr__(name: str) -> Any:
    if name in PRIMITIVES or name in _IMPORTED:
        return _FOUND.setdefault(name, Primitive(name))
    raise AttributeError(f"module 'kiln.language' has no attribute {name!r}")
