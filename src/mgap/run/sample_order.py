"""In which order a run asks: about pictures of one size together, so that the rows of a batch are about as long as each other.

In many families the size of a picture decides on the number of its tokens, and the shorter rows of a batch are padded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mgap.benchmarks.picture_folder import PictureFolder
from mgap.io.images import ImageSource, picture_size
from mgap.io.progress import Progress
from mgap.types import Sample

EVERY = 500  # pictures between two words on how far it is
Size = tuple[int, int]  # width, height


def plan_order(
    samples: Sequence[Sample], picture: Callable[[str], ImageSource], progress: Progress | None = None
) -> tuple[str, ...]:
    """Ids in the order of asking; empty where the order in which pictures first appear is as good: all are of one size.

    Only files have sizes to read, from their headers; pictures that are drawn are all alike.
    """
    if not isinstance(picture, PictureFolder):
        return ()
    names = list(dict.fromkeys(sample.image for sample in samples))
    sizes: dict[str, Size | None] = {}
    for done, name in enumerate(names, start=1):
        sizes[name] = picture_size(picture(name))
        if progress is not None and len(names) > EVERY and (done % EVERY == 0 or done == len(names)):
            progress("sizes of pictures", done, len(names))
    return by_size(samples, sizes)


def by_size(samples: Sequence[Sample], sizes: Mapping[str, Size | None]) -> tuple[str, ...]:
    """The largest pictures first, so that what does not fit into memory fails at once; those of unknown size last.

    Pictures of one size follow by their longest prompt, and the samples of one picture by their prompts: the same words stand
    together. Otherwise all stays in order. Empty where there are no two sizes.
    """
    if len(set(sizes.values()) - {None}) < 2:
        return ()
    place = {name: number for number, name in enumerate(sizes)}
    longest: dict[str, int] = {}
    for sample in samples:
        longest[sample.image] = max(longest.get(sample.image, 0), len(sample.prompt))

    def key(sample: Sample) -> tuple[int, int, int, int, int, str]:
        name = sample.image
        width, height = sizes[name] or (0, 0)
        return -width * height, -width, -longest[name], place[name], -len(sample.prompt), sample.prompt

    return tuple(sample.id for sample in sorted(samples, key=key))
