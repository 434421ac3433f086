"""Price it: what an algorithm costs on a topology, before anyone runs it."""

from .cost import Cost, Limit, cost
from .formulas import Form, closed_form
from .machines import dgx_h100, dragonfly, ethernet_cloud, fat_tree, hosts, laptop, one_host, ring, torus
from .naming import find_topology
from .noise import Noise
from .plan import Plan, plan
from .simulate import simulate
from .sweep import Sweep, sweep
from .this_machine import topology_of_this_machine
from .timeline import Timeline
from .topology import Cut, Link, Routes, Topology

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
