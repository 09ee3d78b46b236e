"""The codecs of Zarr arrays: their names, and which of them may be run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias, cast

import numcodecs.registry
import zarr
import zarr.errors
from numcodecs.errors import UnknownCodecError
from zarr.abc.codec import Codec

from xloader.errors import UnsupportedDataError

Metadata: TypeAlias = Any
"""Metadata of a Zarr array, v2 or v3, as ``zarr.Array.metadata`` has them. zarr has no public
class for them.
"""

_PREFIX: Final = "numcodecs."
"""Prefix of the names of numcodecs' codecs in the metadata of Zarr v3."""

_NUMERIC: Final = frozenset(
    {"blosc", "zstd", "lz4", "gzip", "zlib", "bz2", "lzma", "pcodec", "zfpy", "base64"}
    | {"delta", "fixedscaleoffset", "quantize", "astype", "packbits", "bitround", "shuffle"}
    | {"crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3"}
)
"""Codecs of numcodecs that can only give numbers, whatever the stored bytes are."""

_PACKAGES: Final = {
    "gribberish": "gribberish",
    "gribscan": "gribscan",
    **dict.fromkeys(("grib", "fill_hdf_strings", "FITS", "record_member"), "kerchunk"),
    "imagecodecs": "imagecodecs",
    "pcodec": "pcodec",
    "zfpy": "zfpy",
}
"""The package of some codecs, by the begin of their names; longer ones come first."""

_OF_OBJECTS: Final = frozenset(
    {"pickle", "json2", "msgpack2", "categorize", "vlen-utf8", "vlen-bytes", "vlen-array"}
)
"""Codecs that build Python objects from the bytes. pickle runs code that the bytes hold."""


def codecs_in_words(array: zarr.Array[Any]) -> str:
    """The format version and the codecs of an array: ``"zarr v3, bytes, zstd"``."""
    names = (_name_of(codec) for codec in _codecs_of(array.metadata, with_index=False))
    return ", ".join([f"zarr v{array.metadata.zarr_format}", *names])


def check_codecs(array: zarr.Array[Any]) -> None:
    """Refuse an array of numbers whose codecs may do more than decode numbers.

    zarr's own codecs and the numeric codecs of numcodecs are allowed. So are codecs of other
    packages, because the user installed them. Codecs that build Python objects are refused by
    their names, of whatever package: pickle runs any code that the chunks hold.
    """
    for codec in _codecs_of(array.metadata, with_index=True):
        name = _name_of(codec).removeprefix(_PREFIX)
        package = type(codec).__module__.partition(".")[0]
        is_numeric = package != "numcodecs" or name in _NUMERIC
        if name in _OF_OBJECTS or not is_numeric:
            raise _refusal(f"array {array.path!r}", name)
        if isinstance(codec, Codec) and package == "zarr":
            _check_settings(array.path, cast("Mapping[str, Any]", codec.to_dict()))


def numcodec_of(codec: Mapping[str, Any]) -> object:
    """Make the codec of numcodecs that an entry in the metadata of Zarr v3 describes.

    None if it is not a codec of numcodecs.
    """
    name = str(codec["name"])
    if not name.startswith(_PREFIX):
        return None
    config = {"id": name.removeprefix(_PREFIX), **codec.get("configuration", {})}
    return numcodecs.registry.get_codec(config)


def _check_settings(path: str, codec: Mapping[str, Any]) -> None:
    """Refuse a codec of numcodecs that cannot be made. zarr would only fail when decoding."""
    try:
        numcodec_of(codec)
    # Each codec raises errors of its own for bad settings, or lets NumPy raise.
    except Exception as error:
        raise UnsupportedDataError(
            f"array {path!r} has a codec with invalid settings ({error})",
            given=dict(codec),
            allowed="the settings that numcodecs takes, such as a dtype for delta",
            remedy="write the array again, or correct its zarr.json",
        ) from error


def unknown_codec_error(error: Exception, name: str) -> UnsupportedDataError | None:
    """Translate an error of zarr at opening; None if it is not about a codec."""
    if isinstance(error, UnknownCodecError | zarr.errors.UnknownCodecError):
        # The codec's name is the only quoted text in numcodecs' error, and the first in zarr's.
        quoted = re.search(r"['\"]+([^'\"]+)['\"]+", str(error))
        codec = quoted.group(1) if quoted else str(error)
        short_name = codec.removeprefix(_PREFIX)
        if short_name in _OF_OBJECTS:
            return _refusal(f"an array of {name}", codec)
        package = next((p for start, p in _PACKAGES.items() if short_name.startswith(start)), "")
        return UnsupportedDataError(
            f"{name} has an array with an unknown codec",
            given=repr(codec),
            allowed="the codecs of zarr and numcodecs, and those that are registered with them",
            remedy=f"install the package that provides this codec: pip install {package}"
            if package
            else "install the package that provides this codec, and import it if needed",
        )
    # For numbers stored with a codec of objects, zarr raises that it finds no dtype.
    of_objects = re.search(r"'object_codec_id': '([^']+)'", str(error))
    if isinstance(error, ValueError) and of_objects:
        return _refusal(f"an array of {name}", of_objects.group(1))
    return None


def _refusal(what: str, codec: str) -> UnsupportedDataError:
    return UnsupportedDataError(
        f"{what} is stored with a codec that makes Python objects, and may run code",
        given=f"codec {codec!r}",
        allowed="codecs of bool, integers and floats; pickle can run any code from the data",
        remedy="write the array again as numbers, with codecs such as blosc or zstd",
    )


def _codecs_of(metadata: Metadata, *, with_index: bool) -> Iterator[object]:
    """Every codec of an array, with those inside shards, and if asked those of their indexes."""
    if metadata.zarr_format == 2:
        yield from metadata.filters or ()
        if metadata.compressor is not None:
            yield metadata.compressor
        return
    codecs = list(metadata.codecs)
    while codecs:
        codec = codecs.pop(0)
        yield codec
        # A sharding codec of any package may contain codecs of its own.
        codecs[:0] = getattr(codec, "codecs", ())
        codecs[:0] = getattr(codec, "index_codecs", ()) if with_index else ()


def _name_of(codec: object) -> str:
    if isinstance(codec, Codec):
        return str(codec.to_dict()["name"])
    return str(cast(Any, codec).get_config()["id"])
