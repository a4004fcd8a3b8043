"""The bytes on disk: names, tar members, indexes and manifests. Pure functions of bytes; no I/O. Described in ``docs/format.md``."""
