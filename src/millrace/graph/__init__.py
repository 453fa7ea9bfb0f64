"""Graphs of datasets: nodes, what is written of them, and how they are rewritten."""

from millrace.graph import source_nodes as source_nodes  # whoever reads a graph knows all of its nodes
