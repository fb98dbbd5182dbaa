"""Drawings of fabrics: where nodes stand so that the structure shows, and the files that show it.

``layout`` places the nodes, ``picture`` gathers what is drawn, ``png`` (matplotlib) and ``html`` (plotly) write it.
"""
