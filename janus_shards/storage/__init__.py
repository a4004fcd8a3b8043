"""Where bytes lie: local folders, object stores, and everything fsspec knows, behind two small protocols.

Import from the modules: ``storage.urls`` opens a storage, ``storage.base`` has the protocols and options. Nothing is
imported here, so that ``import janus_shards`` loads neither obstore nor fsspec.
"""
