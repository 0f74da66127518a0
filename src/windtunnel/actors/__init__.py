"""Processes on the machines of a Ray cluster: placed, waited for by name and with a limit, reported. Ray is imported on use."""

from typing import TYPE_CHECKING

from windtunnel import lazy

if TYPE_CHECKING:
    from .connect import ADDRESS, NODES, Joined, expected_nodes, join, joined, own_address
    from .host import Hosted, Look
    from .placement import READY_SECONDS, SHARED_GPU, Node, Wanted, engine_options, lacking, nodes_of, place, wait_for_nodes
    from .waiting import ActorLost, NoAnswer, answer_of, release

__all__ = [
    "ADDRESS",
    "NODES",
    "READY_SECONDS",
    "SHARED_GPU",
    "ActorLost",
    "Hosted",
    "Joined",
    "Look",
    "NoAnswer",
    "Node",
    "Wanted",
    "answer_of",
    "engine_options",
    "expected_nodes",
    "join",
    "joined",
    "lacking",
    "nodes_of",
    "own_address",
    "place",
    "release",
    "wait_for_nodes",
]

__getattr__ = lazy(__name__)
