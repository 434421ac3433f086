"""allfold as a backend of `ray.util.collective`: importing this registers it, in this process, under the name "allfold".

Ray requires a backend to be registered in the driver and in every actor that uses it, before a group is made.
"""

from __future__ import annotations

from ..communicator.timeouts import check_timeout
from ..engines.engine import DEFAULT_TIMEOUT

try:
    import ray as _ray
    from ray.util import collective as _collective
except ImportError as error:
    raise ImportError(f"allfold.ray needs ray (pip install 'allfold[ray]'): {error}") from error
if not hasattr(_collective, "register_collective_backend"):
    raise ImportError(
        f"allfold.ray needs ray 2.56 or newer, which lets others register a collective backend; this is {_ray.__version__}"
    )

from .group import RayGroup

NAME = "ALLFOLD"  # Ray compares names in capital letters
_collective.register_collective_backend(NAME, RayGroup)


def register(timeout: float = DEFAULT_TIMEOUT) -> None:
    """Register the backend, which importing this module has done; `timeout` is for groups made later in this process.

    `timeout` is in seconds: for making a group, and for each of its calls. With
    `ray.init(runtime_env={"worker_process_setup_hook": "allfold.ray.register"})` Ray calls this in every worker process.
    """
    check_timeout("register", timeout)
    RayGroup.timeout = timeout
