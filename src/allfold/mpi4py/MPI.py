"""The names of mpi4py's module `MPI`, on allfold's communicators."""

# ruff: noqa: F401 - the names are what the module is for

from __future__ import annotations

from . import constants as _constants
from . import rc as _rc
from .comm import (
    COMM_NULL,
    COMM_SELF,
    COMM_WORLD,
    Attach_buffer,
    Comm,
    Detach_buffer,
    Flush_buffer,
    Iflush_buffer,
    Intercomm,
    Intracomm,
)
from .data.datatypes import Datatype
from .data.datatypes import typecode as _typecode
from .data.memory import BOTTOM, BUFFER_AUTOMATIC, IN_PLACE, BottomType, BufferAutomaticType, InPlaceType, buffer
from .data.ops import OPS as _OPS
from .data.ops import Op
from .data.pickling import Pickle, pickle
from .data.predefined import TYPES as _TYPES
from .data.predefined import TYPES_BY_CODE as _typedict  # mpi4py's own name, which programs use
from .environment import (
    Aint_add,
    Aint_diff,
    Alloc_mem,
    Finalize,
    Free_mem,
    Get_address,
    Get_hw_resource_info,
    Get_library_version,
    Get_processor_name,
    Get_version,
    Init,
    Init_thread,
    Is_finalized,
    Is_initialized,
    Is_thread_main,
    Pcontrol,
    Query_thread,
    Wtick,
    Wtime,
    get_vendor,
)
from .environment import prepare as _prepare
from .failures import (
    ERRHANDLER_NULL,
    ERRORS_ABORT,
    ERRORS_ARE_FATAL,
    ERRORS_RETURN,
    Add_error_class,
    Add_error_code,
    Add_error_string,
    Errhandler,
    Exception,
    Get_error_class,
    Get_error_string,
    Remove_error_class,
    Remove_error_code,
    Remove_error_string,
)
from .groups import GROUP_EMPTY, GROUP_NULL, Group
from .info import INFO_ENV, INFO_NULL, Info
from .point_to_point import MESSAGE_NO_PROC, MESSAGE_NULL, Message
from .refused import (
    FILE_NULL,
    SESSION_NULL,
    WIN_NULL,
    Close_port,
    File,
    Lookup_name,
    Open_port,
    Publish_name,
    Register_datarep,
    Session,
    Unpublish_name,
    Win,
    _addressof,
    _handleof,
    _sizeof,
)
from .requests import REQUEST_NULL, Grequest, Prequest, Request, Status
from .topology import Cartcomm, Compute_dims, Distgraphcomm, Graphcomm, Topocomm

memory = buffer

globals().update({name: value for name, value in vars(_constants).items() if name.isupper() and name[0] != "_"})
globals().update(_TYPES)
globals().update(_OPS)

if _rc.initialize:
    _prepare()
