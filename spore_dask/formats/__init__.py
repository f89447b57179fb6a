"""Files that users have: each module opens one kind as a `Matrix`, which is read in blocks of rows.

Reads files on this machine's disks, writes nothing that stays. Memory: see `Matrix`.
"""
