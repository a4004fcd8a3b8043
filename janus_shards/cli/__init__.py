"""The command ``janus-shards``: one module a command, over functions of the library."""
