"""torch's test suite for backends as its repository runs it, in `test/distributed/test_distributed_spawn.py`."""

from __future__ import annotations

import os

from torch.testing._internal import common_distributed

if os.environ.get("CONFORMANCE_WAY") == "drop-in":  # torch's suite imports the class from there
    from allfold.testing import MultiProcessTestCase

    common_distributed.MultiProcessTestCase = MultiProcessTestCase

from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend


class Suite(TestDistBackend, DistributedTest._DistTestBase):  # type: ignore[misc]
    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()
