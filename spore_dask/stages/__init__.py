"""The stages of a run, in the order in which data flows: scan, partition, neighbors.

Each reads and writes named arrays in the run's folder, and none knows another.
"""
