"""Bytes of a field to values, and pictures into batches. Knows neither shards nor stores."""

from janus_shards.decode.fields import Decoder, decode_field, encode_field
from janus_shards.decode.image import ImageTransform, decode_image, decode_image16, encode_image, image_size
from janus_shards.decode.lazy import Sample, locate
from janus_shards.decode.structured import decode_text
from janus_shards.decode.transform import Augment, FieldTransform, SampleTransform, TensorSpec, takes_rng

__all__ = [
    "Augment",
    "Decoder",
    "FieldTransform",
    "ImageTransform",
    "Sample",
    "SampleTransform",
    "TensorSpec",
    "decode_field",
    "decode_image",
    "decode_image16",
    "decode_text",
    "encode_field",
    "encode_image",
    "image_size",
    "locate",
    "takes_rng",
]
