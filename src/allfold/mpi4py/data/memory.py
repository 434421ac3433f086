"""The memory of messages: the bytes of an object, at an address, or none."""

from __future__ import annotations

from typing import Any

import numpy as np

from .foreign import array_of_foreign, at_address, is_foreign, is_of_a_device
from .layout import Bytes


class BottomType(int):
    def __new__(cls) -> BottomType:
        return super().__new__(cls, 0)

    def __repr__(self) -> str:
        return "BOTTOM"

    def __reduce__(self) -> str:
        return "BOTTOM"


class InPlaceType(int):
    def __new__(cls) -> InPlaceType:
        return super().__new__(cls, -1)

    def __repr__(self) -> str:
        return "IN_PLACE"

    def __reduce__(self) -> str:
        return "IN_PLACE"


class BufferAutomaticType(int):
    def __new__(cls) -> BufferAutomaticType:
        return super().__new__(cls, -2)

    def __repr__(self) -> str:
        return "BUFFER_AUTOMATIC"

    def __reduce__(self) -> str:
        return "BUFFER_AUTOMATIC"


BOTTOM, IN_PLACE, BUFFER_AUTOMATIC = BottomType(), InPlaceType(), BufferAutomaticType()


def is_buffer(value: Any) -> bool:
    if isinstance(value, (str, int)):
        return False
    try:
        memoryview(value).release()
    except (TypeError, ValueError, BufferError):
        return isinstance(value, np.ndarray)
    return True


def array_of(value: Any, written: bool) -> np.ndarray[Any, Any]:
    """The memory of an object, as an array that is contiguous."""
    if isinstance(value, np.ndarray):
        made = value
    elif is_foreign(value) and not is_buffer(value):
        made = array_of_foreign(value, written)
    else:
        view = memoryview(value)
        if not view.c_contiguous and not view.f_contiguous:
            raise BufferError("message: the buffer is not contiguous")
        if written and view.readonly:
            raise BufferError("message: the buffer is read-only")
        try:
            made = np.asarray(view)
        except ValueError:  # a format that NumPy does not know
            made = np.frombuffer(view.cast("B") if view.nbytes else b"", np.uint8)
    if written and not made.flags.writeable:
        raise BufferError("message: the buffer is read-only")
    if not made.flags.c_contiguous and not made.flags.f_contiguous:
        raise BufferError("message: the buffer is not contiguous")
    return made


def bytes_of(array: np.ndarray[Any, Any]) -> Bytes:
    """The bytes of a contiguous array, without a copy."""
    flat = array.reshape(-1, order="C" if array.flags.c_contiguous else "F")
    return flat.view(np.uint8) if flat.size else np.empty(0, np.uint8)


def address_of(value: Any) -> int:
    if value is None or isinstance(value, BottomType):
        return 0
    array = array_of(value, False)
    return int(array.ctypes.data)


class buffer(np.ndarray[Any, np.dtype[np.uint8]]):
    """A piece of memory, as a buffer of bytes."""

    obj: Any = None
    """The object whose memory it is."""
    is_released = False
    is_of_a_device = False
    """True if a library says that this is a GPU's memory. It may be in messages, but is not read here."""

    def __new__(cls, buf: Any = b"", /) -> buffer:
        if buf is None or not (is_buffer(buf) or is_foreign(buf)):
            raise TypeError(f"expected an object with memory, not {type(buf).__name__}")
        return cls._over(bytes_of(array_of(buf, False)), None if isinstance(buf, bytes) and not buf else buf)

    @classmethod
    def _over(cls, data: Bytes, owner: Any = None) -> buffer:
        self = (data if data.size else np.empty(0, np.uint8)).view(cls)
        self.obj = owner
        self.is_of_a_device = not isinstance(owner, np.ndarray) and is_foreign(owner) and is_of_a_device(owner)
        return self

    @staticmethod
    def allocate(nbytes: int, clear: bool = False) -> buffer:
        if not isinstance(nbytes, int):
            raise TypeError(f"expecting an integer, not {type(nbytes).__name__}")
        if nbytes < 0:
            raise ValueError("expecting non-negative size")
        data = (np.zeros if clear else np.empty)(nbytes, np.uint8)
        return buffer._over(data, data)

    @staticmethod
    def frombuffer(obj: Any, readonly: bool = False) -> buffer:
        data = bytes_of(array_of(obj, False))
        return buffer._over(_protected(data) if readonly else data, obj)

    @staticmethod
    def fromaddress(address: int, nbytes: int, readonly: bool = False) -> buffer:
        if nbytes < 0:
            raise ValueError("expecting non-negative buffer length")
        if nbytes > 0 and not address:
            raise ValueError("expecting non-NULL address")
        data = at_address(address, nbytes)
        return buffer._over(_protected(data) if readonly else data)

    @property
    def address(self) -> int:
        return 0 if self.is_released or (not self.size and self.obj is None) else int(self.ctypes.data)

    @property
    def readonly(self) -> bool:
        return not self.flags.writeable and not self.is_released

    @property
    def nbytes(self) -> int:
        return 0 if self.is_released else self.size

    format = "B"

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, item: Any) -> Any:
        self._check_device()
        _check_item(item)
        found = super().__getitem__(item)
        return int(found) if isinstance(found, np.generic) else found

    def __setitem__(self, item: Any, value: Any) -> None:
        self._check_device()
        if self.readonly:
            raise TypeError("memory buffer is read-only")
        _check_item(item)
        if isinstance(item, slice) and not isinstance(value, int):
            given = bytes_of(array_of(value, False))
            if given.size != super().__getitem__(item).size:
                raise ValueError("slice assignment: the lengths differ")
            value = given
        super().__setitem__(item, value)

    def __delitem__(self, item: Any) -> None:
        raise NotImplementedError("memory cannot be deleted item by item")  # the type that mpi4py raises

    def tobytes(self, order: str | None = None) -> bytes:
        self._check_device()
        return super().tobytes()

    def cast(self, format: str, shape: Any = None) -> memoryview:
        self._check_device()
        view: Any = self.data
        made: memoryview = view.cast(format) if shape is None else view.cast(format, shape)
        return made

    def toreadonly(self) -> buffer:
        return buffer._over(_protected(self), self.obj)

    def release(self) -> None:
        """Release the memory: the buffer is empty from then on."""
        self.obj = None
        self.is_released = True

    def _check_device(self) -> None:
        if self.is_of_a_device:
            raise BufferError("this buffer is in a GPU's memory: copy it to main memory to read or change its bytes")


def _check_item(item: Any) -> None:
    if isinstance(item, slice) and item.step not in (None, 1):
        raise IndexError("a slice of a buffer may not have a step")
    if item is None:
        raise TypeError("an index of a buffer must be an integer or a slice, not None")


def _protected(data: Bytes) -> Bytes:
    view = data.view()
    view.setflags(write=False)
    return view
