"""WebDataset tar shards with MessagePack indexes: write them, open them, stream them to a GPU.

The public faces; everything else is reached through them. Importing this loads neither torch nor a storage client.
"""

from typing import TYPE_CHECKING, Any

from janus_shards.cache.base import CacheOptions
from janus_shards.decode.image import ImageTransform
from janus_shards.decode.lazy import Sample
from janus_shards.decode.transform import FieldTransform, SampleTransform, TensorSpec
from janus_shards.errors import (
    AccessDeniedError,
    ConfigError,
    DecodeError,
    FormatError,
    IndexFormatError,
    IntegrityError,
    JanusShardsError,
    ManifestError,
    MissingFieldError,
    ObjectNotFoundError,
    ResumeError,
    SampleBudgetError,
    SampleError,
    StorageError,
    TarFormatError,
    TransientError,
    VersionError,
)
from janus_shards.pipeline.bad_samples import BadSamples
from janus_shards.pipeline.batch import Batch
from janus_shards.pipeline.loader import Loader
from janus_shards.pipeline.options import LoaderOptions
from janus_shards.reader import Dataset, open_dataset
from janus_shards.storage.base import StorageOptions
from janus_shards.world import World
from janus_shards.writer import ShardWriter

if TYPE_CHECKING:
    from janus_shards.torch.dataset import TorchIterable
    from janus_shards.torch.loading import open_loader

__version__ = "0.1.0"

__all__ = [
    "AccessDeniedError",
    "BadSamples",
    "Batch",
    "CacheOptions",
    "ConfigError",
    "Dataset",
    "DecodeError",
    "FieldTransform",
    "FormatError",
    "ImageTransform",
    "IndexFormatError",
    "IntegrityError",
    "JanusShardsError",
    "Loader",
    "LoaderOptions",
    "ManifestError",
    "MissingFieldError",
    "ObjectNotFoundError",
    "ResumeError",
    "Sample",
    "SampleBudgetError",
    "SampleError",
    "SampleTransform",
    "ShardWriter",
    "StorageError",
    "StorageOptions",
    "TarFormatError",
    "TensorSpec",
    "TorchIterable",
    "TransientError",
    "VersionError",
    "World",
    "open_dataset",
    "open_loader",
]

# These live beside torch, which takes a second to import and which packing and reading do without.
_LATE = {"TorchIterable": "janus_shards.torch.dataset", "open_loader": "janus_shards.torch.loading"}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'janus_shards' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LATE[name]), name)
