"""The order of a run's samples: pictures of one size together, so that the rows of a batch are about equally long.

In many families the number of image tokens depends on the picture's size, and shorter rows of a batch are padded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mgap.benchmarks.picture_folder import PictureFolder
from mgap.io.images import ImageSource, picture_size
from mgap.io.progress import Progress
from mgap.types import Sample

EVERY = 500  # pictures between two progress reports
Size = tuple[int, int]  # width, height


def plan_order(
    samples: Sequence[Sample], picture: Callable[[str], ImageSource], progress: Progress | None = None
) -> tuple[str, ...]:
    """Ids in the order of asking; empty if all pictures have one size: then the order of first appearance will do.

    Sizes are read from the headers of files; drawn pictures all have one size.
    """
    if not isinstance(picture, PictureFolder):
        return ()
    names = list(dict.fromkeys(sample.image for sample in samples if sample.image))
    sizes: dict[str, Size | None] = {}
    for done, name in enumerate(names, start=1):
        sizes[name] = picture_size(picture(name))
        if progress is not None and len(names) > EVERY and (done % EVERY == 0 or done == len(names)):
            progress("sizes of pictures", done, len(names))
    return by_size(samples, sizes)


def by_size(samples: Sequence[Sample], sizes: Mapping[str, Size | None]) -> tuple[str, ...]:
    """The largest pictures first, so that a batch too big for memory fails at once; unknown sizes and no picture last.

    Pictures of one size are ordered by their longest prompt, and the samples of one picture by their prompts, which puts equal
    prompts together. Ties keep their order. Empty if there are no two sizes.
    """
    if len(set(sizes.values()) - {None}) < 2:
        return ()
    position = {name: number for number, name in enumerate([*sizes, ""])}
    longest: dict[str, int] = {}
    for sample in samples:
        longest[sample.image] = max(longest.get(sample.image, 0), len(sample.prompt))

    def key(sample: Sample) -> tuple[int, int, int, int, int, str]:
        name = sample.image
        width, height = sizes.get(name) or (0, 0)
        return -width * height, -width, -longest[name], position[name], -len(sample.prompt), sample.prompt

    return tuple(sample.id for sample in sorted(samples, key=key))
