import os

from hypothesis import settings

# Examples take as long as a busy machine makes them; a slow one is no failure. CI tries the same examples at every run.
settings.register_profile("janus-shards", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("janus-shards")
