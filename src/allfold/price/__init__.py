"""Price it: what an algorithm costs on a topology, before anyone runs it."""

from .cost.closed_form import Form, closed_form
from .cost.cost import Cost, Limit, cost
from .cost.plan import Plan, plan
from .cost.sweep import Sweep, sweep
from .simulate.noise import Noise
from .simulate.simulate import simulate
from .simulate.timeline import Timeline
from .topology.machines import dgx_h100, dragonfly, ethernet_cloud, fat_tree, hosts, laptop, one_host, ring, torus
from .topology.parse import find_topology
from .topology.this_machine import topology_of_this_machine
from .topology.topology import Cut, Link, Routes, Topology

__all__ = [
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
    "closed_form",
    "cost",
    "dgx_h100",
    "dragonfly",
    "ethernet_cloud",
    "fat_tree",
    "find_topology",
    "hosts",
    "laptop",
    "one_host",
    "plan",
    "ring",
    "simulate",
    "sweep",
    "topology_of_this_machine",
    "torus",
]
