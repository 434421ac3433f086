"""Find it: the best schedule for a network, and a proof that no schedule is much better."""

from .find import METHODS, find
from .found import Found, Task

__all__ = ["METHODS", "Found", "Task", "find"]
