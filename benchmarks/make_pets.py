"""The long-tailed pets of the benchmarks, made from Oxford-IIIT Pet.

    python benchmarks/make_pets.py IMAGES PETS

IMAGES is the folder `images` of the published archive (images.tar.gz), PETS a new folder. benchmarks/pets.csv has the
numbers of the photos: 879 of the trainval part for training, from 90 down to 2 of a breed, and the first 30 of the test
part for each breed. Their shorter side is scaled to 256 pixels.
"""

import argparse
import csv
from pathlib import Path

from PIL import Image

LIST = Path(__file__).parent / "pets.csv"
SHORTER, QUALITY = 256, 80


def make(images: Path, out: Path) -> int:
    """Write the photos, and return their number."""
    written = 0
    with LIST.open(newline="") as file:
        for row in csv.DictReader(file):
            folder = out / row["split"] / row["breed"]
            folder.mkdir(parents=True)
            for number in row["numbers"].split():
                name = f"{row['breed']}_{number}.jpg"
                with Image.open(images / name) as photo:
                    scale = SHORTER / min(photo.size)
                    small = photo.convert("RGB").resize(
                        [round(scale * side) for side in photo.size], Image.Resampling.LANCZOS
                    )
                small.save(folder / name, quality=QUALITY)
                written += 1
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    print(make(options.images, options.out), "photos")


if __name__ == "__main__":
    main()
