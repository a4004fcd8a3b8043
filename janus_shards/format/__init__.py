"""The bytes on disk: names, tar members, indexes and manifests, as ``docs/format.md`` describes them.

Pure functions of bytes; no I/O.
"""
