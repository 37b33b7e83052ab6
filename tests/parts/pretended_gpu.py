"""A pretended CUDA device for a torch without one: tensors compute on the CPU, say `cuda:0`, and are counted as CUDA would work.

An operation on tensors of both devices raises the error of CUDA. `waits` are the points at which the host stops until the device
is done, by source line: reading a value, sizes that depend on values (`nonzero`, boolean indexing), `torch.cuda.synchronize`, and
copies between the devices, except `non_blocking` ones from or to pinned memory. All numbers are those of the CPU, bit for bit.
"""

import contextlib
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import peft  # noqa: F401  it imports bitsandbytes, which must not find the pretended device
import torch
from torch import Tensor
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), str(Path(torch.__file__).parents[1]))
READS = {"_local_scalar_dense", "equal", "is_nonzero"}  # their result is a number on the host
SIZES = {"nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount"}  # ... or a size
INDEXING = {"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_"}


class Counts:
    def __init__(self) -> None:
        self.waits: Counter[str] = Counter()  # by `file:line operation`

    @property
    def num_waits(self) -> int:
        return self.waits.total()

    def reset(self) -> None:
        self.waits.clear()

    def report(self) -> str:
        return "\n".join(f"{count:6d} {what}" for what, count in self.waits.most_common())


_counts = Counts()  # of the context that is open
_pinned: dict[int, Tensor] = {}  # address -> pretended pinned memory


@contextlib.contextmanager
def pretended_gpu() -> Iterator[Counts]:
    """Inside the block torch has one CUDA device; afterwards torch is as before. Tensors of the device are of no use then."""
    global _counts
    _counts = counts = Counts()
    swapped, lifted = torch.__future__.get_swap_module_params_on_conversion(), torch._C._only_lift_cpu_tensors()
    _device_constructors()  # kept by torch from its first call on, which must not see what is patched
    with contextlib.ExitStack() as stack:
        for place, name, pretended in _patches():
            stack.enter_context(mock.patch.object(place, name, pretended, create=not hasattr(place, name)))
        stack.callback(_pinned.clear)
        stack.callback(torch.__future__.set_swap_module_params_on_conversion, swapped)
        stack.callback(torch._C._set_only_lift_cpu_tensors, lifted)
        torch.__future__.set_swap_module_params_on_conversion(True)  # Module.to changes the parameters' class
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device=...) makes a CPU tensor and copies it
        stack.enter_context(_Mode())
        yield counts


class GpuTensor(torch.Tensor):
    """A tensor that says `cuda:0`; `inner` holds its numbers. To C++ it is a CPU tensor, for which autograd needs no device."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: Tensor) -> "GpuTensor":
        place = {"strides": inner.stride(), "storage_offset": inner.storage_offset()}
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, **place, dtype=inner.dtype, device=CPU)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    data = property(lambda self: self.detach(), lambda self, new: self._set_data(new))

    def _set_data(self, new: "GpuTensor") -> None:
        torch.Tensor.data.__set__(self, new)  # type: ignore[attr-defined]
        self.inner = new.inner

    def get_device(self) -> int:
        return 0

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.inner.untyped_storage()

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def cpu(self, *_: Any) -> Tensor:
        return self.to(CPU)

    def to(self, *args: Any, copy: bool = False, **options: Any) -> Tensor:  # type: ignore[override]
        """As for any tensor; the way to the CPU is seen here alone, because in C++ the tensor is there already."""
        if args and isinstance(args[0], Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **options)
        if device is not None and device.type == "cpu":
            if not non_blocking:  # torch takes pinned memory for a copy that it does not wait for
                _count("copy to the host")
            return self.inner.detach().clone().to(dtype or self.dtype)
        return super().to(dtype=dtype or self.dtype, copy=copy)

    def tolist(self) -> Any:
        _count("tolist")
        return self.inner.tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")

    def __deepcopy__(self, memo: dict[int, Any]) -> "GpuTensor":
        made = memo[id(self)] = GpuTensor(self.inner.clone()).requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            made._is_param = True
        return made


class _Mode(TorchDispatchMode):
    """Sees every operation of this thread, those that make tensors too."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute one operation on the inner tensors, and count what the device would do."""
    flat, spec = tree_flatten((args, kwargs))
    ours = [x for x in flat if isinstance(x, GpuTensor)]
    name, device = func.overloadpacket.__name__, kwargs.get("device")
    made_here = device is not None and torch.device(device).type == "cuda"
    if ours:
        _check_devices(name, args, [x for x in flat if isinstance(x, Tensor)])
    if ours or made_here:
        _count_operation(name, func._overloadname, args, kwargs)
    inner_args, inner_kwargs = tree_unflatten([x.inner if isinstance(x, GpuTensor) else x for x in flat], spec)
    inner_kwargs |= {"device": CPU} if made_here else {}
    if name in ("mm", "addmm") and func._overloadname.startswith("dtype"):  # the result's, which only CUDA has
        *inner_args, dtype = inner_args
        inner_args, func = [x.to(dtype) for x in inner_args], getattr(torch, name)
    out = func(*inner_args, **inner_kwargs)
    if not made_here and not (ours and (name != "copy_" or isinstance(args[0], GpuTensor))):
        return out
    back = {id(x.inner): x for x in ours}  # an operation in place returns the tensor that it was given
    return tree_map(lambda x: back[id(x)] if id(x) in back else GpuTensor(x) if isinstance(x, Tensor) else x, out)


def _check_devices(name: str, args: Any, tensors: list[Tensor]) -> None:
    """Raise the error of CUDA for tensors of two devices; a CPU tensor without dimensions is taken as a number."""
    if name in ("copy_", "_to_copy"):
        return
    if name in INDEXING:  # the indices alone may lie on the CPU
        tensors = [x for x in (args[0], *args[2:]) if isinstance(x, Tensor)]
        tensors += [x for x in args[1] if isinstance(x, GpuTensor)]
    foreign = [x for x in tensors if not isinstance(x, GpuTensor)]
    if not foreign or len(foreign) == len(tensors):
        return
    written = name.endswith("_") and tensors[0] is foreign[0]
    if written or name in ("cat", "stack") or any(x.dim() > 0 for x in foreign):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! ({name})"
        )


def _count_operation(name: str, overload: str, args: Any, kwargs: dict[str, Any]) -> None:
    if name in ("copy_", "_to_copy"):
        sides = args[: 2 if name == "copy_" else 1]
        host = next((x for x in sides if not isinstance(x, GpuTensor)), None)
        if host is not None:  # a copy between the devices
            asked = kwargs.get("non_blocking") or (name == "copy_" and args[2:3] == (True,))
            if not (asked and host.untyped_storage().data_ptr() in _pinned):
                _count("copy to the host" if host is args[0] and name == "copy_" else "copy to the device")
        return
    counts_itself = name == "repeat_interleave" and overload == "Tensor" and kwargs.get("output_size") is None
    if name in READS | SIZES or counts_itself:
        _count(name)
    if name in INDEXING:
        # an assignment of one number at one boolean mask is a `masked_fill`, which needs no size
        fills = len(args) > 2 and args[2].numel() == 1 and sum(index is not None for index in args[1]) == 1
        for index in (x for x in args[1] if isinstance(x, Tensor)):
            if not isinstance(index, GpuTensor):
                _count(f"{name} at indices on the host")
            elif index.dtype in (torch.bool, torch.uint8) and not fills:
                _count(f"{name} at a boolean mask")


def _count(what: str) -> None:
    """Once more, at the innermost source line that is neither a library's nor ours, as `folder/file.py:line`."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((__file__, "<", *LIBRARIES)):
        frame = frame.f_back
    _counts.waits[f"{'/'.join(Path(frame.f_code.co_filename).parts[-2:])}:{frame.f_lineno} {what}"] += 1


def _in_pinned_memory(x: Tensor, *_: Any) -> Tensor:
    x = x.clone()
    _pinned[x.untyped_storage().data_ptr()] = x
    return x


class _Event:
    """A CUDA event of a device that has always finished: its time is that of the host."""

    def __init__(self, *_: Any, **__: Any):
        self.seconds = 0.0

    def record(self, stream: Any = None) -> None:
        self.seconds = time.perf_counter()

    def elapsed_time(self, end: "_Event") -> float:
        return 1000 * (end.seconds - self.seconds)


class _Generator(torch.Generator):
    """A generator of the CPU, wherever it is asked for."""

    def __new__(cls, device: Any = "cpu") -> "_Generator":
        return super().__new__(cls)


def _patches() -> Iterator[tuple[Any, str, Any]]:
    """What torch has to say of the device: place, name, and what takes its place."""

    def as_device(*args: Any) -> tuple[Any, ...]:
        """The arguments of `Tensor.to`, with device and dtype in place of a tensor that says what it has."""
        return (CUDA, args[0].dtype, *args[1:]) if args and isinstance(args[0], GpuTensor) else args

    yield torch.Tensor, "pin_memory", _in_pinned_memory
    to = _with_index(torch.Tensor.to)
    yield torch.Tensor, "to", lambda self, *args, **kwargs: to(self, *as_device(*args), **kwargs)
    yield torch.Tensor, "cuda", lambda self, *_: self.to(CUDA)
    yield torch, "tensor", _with_index(torch.tensor)
    for name in ("is_autocast_enabled", "get_autocast_dtype"):
        yield torch, name, _for_cpu(getattr(torch, name))
    yield torch.autocast, "__init__", _for_cpu(torch.autocast.__init__, position=1)
    yield torch._C, "_group_tensors_by_device_and_dtype", _grouped(torch._C._group_tensors_by_device_and_dtype)
    for module in map(import_module, ("torch.optim.optimizer", "torch.utils._foreach_utils")):
        yield module, "_foreach_supported_types", [*module._foreach_supported_types, GpuTensor]
    said = {"is_available": True, "is_bf16_supported": True, "device_count": 1, "current_device": 0}
    said |= {"mem_get_info": (70 << 30, 80 << 30), "memory_allocated": 0, "max_memory_allocated": 0}
    silent = (
        "get_rng_state",
        "set_rng_state",
        "set_device",
        "_lazy_init",
        "empty_cache",
        "reset_peak_memory_stats",
        "manual_seed_all",
    )
    for name, answer in (said | dict.fromkeys(silent)).items():
        yield torch.cuda, name, lambda *_, answer=answer, **__: answer
    yield torch.accelerator, "current_accelerator", lambda *_, **__: None  # a build for CUDA asks a driver
    yield torch.cuda, "synchronize", lambda *_: _count("torch.cuda.synchronize")
    yield torch.cuda, "Event", _Event
    yield torch, "Generator", _Generator
    yield torch, "inference_mode", torch.no_grad  # whose tensors cannot be wrapped
    yield torch.cuda, "current_stream", lambda *_: SimpleNamespace(synchronize=lambda: _count("Stream.synchronize"))


def _with_index(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, given `cuda:0` for `cuda`: torch would ask the device for its index."""

    def indexed(x: Any) -> Any:
        return CUDA if isinstance(x, str | torch.device) and str(x) == "cuda" else x

    return lambda *args, **kwargs: function(*map(indexed, args), **{k: indexed(x) for k, x in kwargs.items()})


def _for_cpu(function: Callable[..., Any], position: int = 0) -> Callable[..., Any]:
    """`function`, asked of `cpu` where it is asked of `cuda`: autocast sees the tensors as C++ does."""

    def asked(*args: Any, **kwargs: Any) -> Any:
        args = tuple("cpu" if i == position and x == "cuda" else x for i, x in enumerate(args))
        return function(*args, **{k: "cpu" if k == "device_type" and x == "cuda" else x for k, x in kwargs.items()})

    return asked


def _grouped(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, which groups an optimizer's tensors by device, with the device that they say."""

    def grouped(columns: Any, with_indices: bool = False) -> Any:
        ours = any(isinstance(x, GpuTensor) for column in columns for x in column)
        found = function(columns, with_indices)
        return {(CUDA if ours else device, dtype): x for (device, dtype), x in found.items()}

    return grouped
