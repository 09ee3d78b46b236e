"""The headings of figures, explained in a few words for cards. The glossary says more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_REPEATED: Final = "reads divided by the chunks that are needed; 1 reads each of them once"
_PEAK: Final = "the most bytes of batches, chunks on their way and decoded chunks at a time"
_REGIONS: Final = (
    "distinct regions of the data among the samples of a batch, on average: the more, the more a "
    "batch differs from neighbouring samples"
)
_FULL_SHUFFLE: Final = (
    "a shuffle in which every order of the samples is equally likely, whatever it costs to read"
)

FIGURE_WORDS: Final[Mapping[str, str]] = {
    "padding": "rows that repeat others, so that all ranks have equally many; see batch.is_padding",
    "reads": "chunks that are fetched and decoded, each variable's own",
    "amplification": _REPEATED,
    "reads a chunk": _REPEATED,
    "max_amplification": "the most reads a chunk that the plan may need",
    "mixing": _REGIONS,
    "regions a batch": _REGIONS,
    "in a full shuffle": _FULL_SHUFFLE,
    "of a full shuffle": f"mixing, as a share of that of a full shuffle: {_FULL_SHUFFLE}",
    "memory": "bytes for batches, chunks on their way and decoded chunks at a time",
    "peak memory": _PEAK,
    "plan": "tile: elements that are ordered as one unit; spread: how many later tiles come in "
    "while a tile hands out its samples; visits: how often the plan comes by each tile; lanes: "
    "parts of the order that ranks own",
    "read": "the way in which the chunks of these variables are fetched and decoded",
    "gather": "the way in which rows are copied from decoded chunks into batches",
    "transfer": "what crosses to the device with each batch",
    "shared": "chunks that several ranks or workers need, and that each of them reads",
    "delivered": "bytes of the batches that the training loop took",
    "decoded": "bytes of the chunks that were read, after decoding",
    "waited": "time in which the training loop waited for a batch",
    "threads": "what the loader's threads did; the rest of their time they were idle",
    "cores": "the average number of cores that computed for this process",
    "waits": "time in which the loader's threads had work, but no lock or no core",
    "ahead": "chunks that the store was asked for before there was memory to decode them",
    "headroom": "the loader's speed if the training loop took no time",
    "bottleneck": "what limits the speed, and what would help",
    "retries": "requests that repeat a failed one",
    "missing": "chunks that the store does not hold",
    "skipped": "samples that other rows of their batches replaced",
    "NaN": "missing values in the delivered batches",
    "front": "no other plan is as good in reads, mixing and memory, and better in one of them",
}
"""By heading, what is meant."""
