"""Price it: what an algorithm costs on a topology, before anyone runs it."""

from .check_bound import check_bound
from .check_groups import check_bound_of_groups
from .cost.certificate import Certificate
from .cost.closed_form import Form, closed_form
from .cost.cost import Cost, Limit, cost
from .cost.plan import Plan, plan
from .cost.sweep import Sweep, sweep
from .simulate.noise import Noise
from .simulate.simulate import simulate
from .simulate.timeline import Timeline
from .topology.gpu_servers import dgx1, dgx2, dgx_a100, dgx_h100, mi250, ndv2
from .topology.machines import (
    dragonfly,
    ethernet_cloud,
    fat_tree,
    hosts,
    hypercube,
    laptop,
    mesh,
    one_host,
    ring,
    torus,
)
from .topology.parse import find_topology
from .topology.this_machine import topology_of_this_machine
from .topology.topology import Cut, Link, Routes, Topology
from .topology.without import without

__all__ = [
    "Certificate",
    "Cost",
    "Cut",
    "Form",
    "Limit",
    "Link",
    "Noise",
    "Plan",
    "Routes",
    "Sweep",
    "Timeline",
    "Topology",
    "check_bound",
    "check_bound_of_groups",
    "closed_form",
    "cost",
    "dgx1",
    "dgx2",
    "dgx_a100",
    "dgx_h100",
    "dragonfly",
    "ethernet_cloud",
    "fat_tree",
    "find_topology",
    "hosts",
    "hypercube",
    "laptop",
    "mesh",
    "mi250",
    "ndv2",
    "one_host",
    "plan",
    "ring",
    "simulate",
    "sweep",
    "topology_of_this_machine",
    "torus",
    "without",
]
